//! The full name of this node, as Python's `socket.getfqdn()` gives it. torchrun writes it into its report.
#![expect(unsafe_code, reason = "neither std nor nix has `gethostbyaddr_r`, which alone knows the aliases")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::{IpAddr, ToSocketAddrs};
use std::ptr::null_mut;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::facts::short_hostname;

/// The lookup is abandoned after this time, so an unreachable name server delays nothing for longer.
const AT_MOST: Duration = Duration::from_secs(1);
/// Holds a host's names and addresses.
const BUFFER: usize = 16 * 1024;

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
    let (answer, answered) = mpsc::sync_channel(1);
    let asked = short.clone();
    // A thread of its own, as the resolver cannot be interrupted. A thread that takes too long is left
    // behind.
    let asking = thread::Builder::new().name("host-name".to_owned()).spawn(move || {
        let _ = answer.send(look_up(&asked));
    });
    let found = asking.ok().and_then(|_| answered.recv_timeout(AT_MOST).ok());
    found.flatten().unwrap_or(short)
}

/// Resolves the name to an address, and that address to its names.
fn look_up(name: &str) -> Option<String> {
    let address = (name, 0).to_socket_addrs().ok()?.next()?.ip();
    let (canonical, aliases) = names_of(address)?;
    Some(choose(canonical, aliases))
}

/// The first name with a dot, else the canonical name.
fn choose(canonical: String, aliases: Vec<String>) -> String {
    let has_dot = |name: &String| name.contains('.');
    if has_dot(&canonical) {
        return canonical;
    }
    aliases.into_iter().find(has_dot).unwrap_or(canonical)
}

fn names_of(address: IpAddr) -> Option<(String, Vec<String>)> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let mut entry = MaybeUninit::<libc::hostent>::uninit();
    let mut buffer = vec![0 as c_char; BUFFER];
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
        Some((text(entry.h_name)?, texts(entry.h_aliases)))
    }
}

/// # Safety
/// Null, or a C string.
unsafe fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees null or a C string.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// # Safety
/// Null, or a list of C strings that ends with null.
unsafe fn texts(mut list: *const *mut c_char) -> Vec<String> {
    let mut texts = Vec::new();
    while !list.is_null() {
        // SAFETY: the caller guarantees the list, and the entry before was not the last.
        let Some(text) = (unsafe { text(*list) }) else { break };
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
    fn a_name_with_a_dot_is_better() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let choose = |canonical: &str, aliases: &[&str]| super::choose(canonical.to_owned(), names(aliases));
        assert_eq!(choose("a.b", &["c.d"]), "a.b");
        assert_eq!(choose("node7", &["n7", "node7.cluster.local"]), "node7.cluster.local");
        assert_eq!(choose("localhost", &["loopback"]), "localhost");
    }

    #[test]
    fn there_is_always_a_name() {
        assert!(!full_name().is_empty());
    }
}
