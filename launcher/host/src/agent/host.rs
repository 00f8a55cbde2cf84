//! The full name of this node, as Python's `socket.getfqdn()` gives it. torchrun writes it into its report.
#![expect(unsafe_code, reason = "neither std nor nix has `gethostbyaddr_r`, which alone knows the aliases")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::{IpAddr, ToSocketAddrs};
use std::ptr::null_mut;
use std::time::Duration;

use crate::blocking::BlockingCall;
use crate::system::short_hostname;

/// The lookup is abandoned after this time, so an unreachable name server delays nothing for longer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Holds a host's names and addresses.
const BUFFER_SIZE: usize = 16 * 1024;

unsafe extern "C" {
    fn gethostbyaddr_r(
        addr: *const c_void,
        len: libc::socklen_t,
        family: c_int,
        entry: *mut libc::hostent,
        buffer: *mut c_char,
        buffer_len: usize,
        result: *mut *mut libc::hostent,
        error: *mut c_int,
    ) -> c_int;
}

/// The host's full name, or the short name if the lookup takes more than a second.
#[must_use]
pub(super) fn full_name() -> String {
    let short = short_hostname();
    let asked = short.clone();
    let call = BlockingCall::start("host-name", move |_| lookup_full_name(&asked)).ok();
    call.and_then(|call| call.wait(LOOKUP_TIMEOUT)).flatten().unwrap_or(short)
}

/// Resolves the name to an address, and that address to its names.
fn lookup_full_name(name: &str) -> Option<String> {
    let address = (name, 0).to_socket_addrs().ok()?.next()?.ip();
    let (canonical, aliases) = reverse_lookup(address)?;
    Some(preferred_name(canonical, aliases))
}

/// The first name with a dot, else the canonical name.
fn preferred_name(canonical: String, aliases: Vec<String>) -> String {
    let has_dot = |name: &String| name.contains('.');
    if has_dot(&canonical) {
        return canonical;
    }
    aliases.into_iter().find(has_dot).unwrap_or(canonical)
}

fn reverse_lookup(address: IpAddr) -> Option<(String, Vec<String>)> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let mut entry = MaybeUninit::<libc::hostent>::uninit();
    let mut buffer = vec![0 as c_char; BUFFER_SIZE];
    let (mut found, mut error) = (null_mut(), 0);
    // SAFETY: every pointer is valid for its length during the call.
    let status = unsafe {
        gethostbyaddr_r(
            octets.as_ptr().cast(),
            libc::socklen_t::try_from(octets.len()).ok()?,
            family,
            entry.as_mut_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
            &raw mut error,
        )
    };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: `found` is `entry`, filled in; its texts are in `buffer`, which still lives.
    unsafe {
        let entry = &*found;
        Some((c_string(entry.h_name)?, c_string_list(entry.h_aliases)))
    }
}

/// # Safety
/// Null, or a C string.
unsafe fn c_string(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees null or a C string.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// # Safety
/// Null, or a list of C strings that ends with null.
unsafe fn c_string_list(mut list: *const *mut c_char) -> Vec<String> {
    let mut texts = Vec::new();
    while !list.is_null() {
        // SAFETY: the caller guarantees the list, and the entry before was not the last.
        let Some(text) = (unsafe { c_string(*list) }) else { break };
        texts.push(text);
        // SAFETY: the list continues behind every entry that is not null.
        list = unsafe { list.add(1) };
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_dot_is_preferred() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let choose =
            |canonical: &str, aliases: &[&str]| super::preferred_name(canonical.to_owned(), names(aliases));
        assert_eq!(choose("a.b", &["c.d"]), "a.b");
        assert_eq!(choose("node7", &["n7", "node7.cluster.local"]), "node7.cluster.local");
        assert_eq!(choose("localhost", &["loopback"]), "localhost");
    }

    #[test]
    fn full_name_is_never_empty() {
        assert!(!full_name().is_empty());
    }
}
