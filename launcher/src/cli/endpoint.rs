//! The syntax of `--rdzv-endpoint` (contract 1.8).

use std::net::{IpAddr, Ipv6Addr};

use super::error::Problem;

/// Of a name with a dot at its end (RFC 1035, 2.3.4).
const LONGEST_NAME: usize = 254;

const NEITHER_NAME_NOR_IPV6: Problem = Problem {
    text: "neither a name nor an IPv6 address",
    hint: "an IPv6 address stands in brackets, and one port behind it",
};
const NO_IPV4: Problem =
    Problem { text: "not an IPv4 address", hint: "give the name or an address of one machine" };
const NO_NAME: Problem = Problem { text: "not a host name", ..NO_IPV4 };
/// A broadcast or multicast address.
const MANY_MACHINES: Problem =
    Problem { text: "an address of many machines, where no connection arrives", ..NO_IPV4 };
/// A link-local address.
const NEEDS_INTERFACE: Problem = Problem {
    text: "an address that means nothing without its interface, which cannot be given",
    hint: "give another address of that machine, or its name",
};

/// Why a text names no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// torch cannot read it either.
    Unreadable,
    /// No node can ever be reached at this host.
    Host {
        /// Without brackets.
        host: String,
        /// Why not.
        problem: Problem,
    },
}

/// Host and port, as torch reads them; no port where none is written.
///
/// A bare IPv6 address is misread as torch misreads it: `::1` is port 1 of `:`.
///
/// # Errors
/// What torch cannot read, and what torchrun would try in vain until its time is over.
pub(super) fn parse_endpoint(text: &str) -> Result<(String, Option<u16>), NoPlace> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(("localhost".to_owned(), None));
    }
    let in_brackets = text.starts_with('[') && text.ends_with(']');
    match text.rsplit_once(':').filter(|_| !in_brackets) {
        Some((host, port)) => {
            let port = parse_port(port).ok_or(NoPlace::Unreadable)?;
            Ok((parse_host(host)?, Some(port)))
        }
        None => Ok((parse_host(text)?, None)),
    }
}

/// A host as torch's endpoints have it: letters, digits, `_`, `.`, `:`, `-`, in brackets or not.
///
/// # Errors
/// See [`parse_endpoint`].
pub(super) fn parse_host(text: &str) -> Result<String, NoPlace> {
    let host = text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text);
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | ':' | '-');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(NoPlace::Unreadable);
    }
    match problem_of(host) {
        Some(problem) => Err(NoPlace::Host { host: host.to_owned(), problem }),
        None => Ok(host.to_owned()),
    }
}

/// Whether no node can be at this host, whatever a resolver says.
fn problem_of(host: &str) -> Option<Problem> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return match address.to_canonical() {
            IpAddr::V4(address) if address.is_broadcast() || address.is_multicast() => Some(MANY_MACHINES),
            IpAddr::V6(address) if address.is_multicast() => Some(MANY_MACHINES),
            // The kernel refuses to connect to one without an interface (ipv6(7)), and torch reads no `%`.
            IpAddr::V6(address) if address.is_unicast_link_local() => Some(NEEDS_INTERFACE),
            _ => None,
        };
    }
    if host.contains(':') {
        return Some(NEITHER_NAME_NOR_IPV6);
    }
    let is_number = host.split('.').all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let is_name = host.len() <= LONGEST_NAME && host.chars().any(char::is_alphanumeric);
    if is_number && !is_short_ipv4(host) {
        return Some(NO_IPV4);
    }
    (!is_name).then_some(NO_NAME)
}

/// An IPv4 address as inet_aton(3) reads it too: `127.1`, `10.0.258`. Octal digits go to the resolver unread.
fn is_short_ipv4(host: &str) -> bool {
    let parts: Vec<_> = host.split('.').collect();
    let Some((last, first)) = parts.split_last().filter(|(_, first)| first.len() < 4) else { return false };
    let is_below = |part: &str, limit: u64| part.parse::<u64>().is_ok_and(|number| number < limit);
    first.iter().all(|part| is_below(part, 256)) && is_below(last, 1 << (8 * (4 - first.len())))
}

/// An IPv6 address, with or without a port behind it, and without the brackets that tell which.
pub(super) fn is_bare_ipv6(text: &str) -> bool {
    let text = text.trim();
    let before_port = text.rsplit_once(':').map_or("", |(host, _)| host);
    [text, before_port].iter().any(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// One to five digits.
fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn endpoints_are_parsed_like_torch() {
        for (text, host, port) in [
            ("", "localhost", None),
            ("  ", "localhost", None),
            ("h", "h", None),
            (" h:5 ", "h", Some(5)),
            ("h:00001", "h", Some(1)),
            ("h:65535", "h", Some(65_535)),
            ("h:0", "h", Some(0)),
            ("a.b-c_d:1", "a.b-c_d", Some(1)),
            ("[::1]", "::1", None),
            ("[::1]:7", "::1", Some(7)),
            ("fd00::2:7", "fd00::2", Some(7)),
            // torchrun's node that hosts may call itself so.
            ("0.0.0.0:5", "0.0.0.0", Some(5)),
            ("[::]:5", "::", Some(5)),
        ] {
            assert_eq!(parse_endpoint(text), Ok((host.to_owned(), port)), "`{text}`");
        }
        for text in
            ["h:", "h:000001", "h:65536", "h:-1", "h:x", ":5", "tcp://h:1", "a b:1", "h/:1", "[]", "[a]:[b]"]
        {
            assert_eq!(parse_endpoint(text), Err(NoPlace::Unreadable), "`{text}`");
        }
    }

    #[test]
    fn unreachable_host_is_rejected() {
        let long = "a".repeat(LONGEST_NAME + 1);
        for (host, problem) in [
            ("th1:29400", NEITHER_NAME_NOR_IPV6),
            (":", NEITHER_NAME_NOR_IPV6),
            ("a:b:c", NEITHER_NAME_NOR_IPV6),
            ("1.2.3.4:5", NEITHER_NAME_NOR_IPV6),
            ("1:2:3:4:5:6:7:8:9", NEITHER_NAME_NOR_IPV6),
            ("256.0.0.1", NO_IPV4),
            ("1.2.3.4.5", NO_IPV4),
            ("10.0..1", NO_IPV4),
            ("4294967296", NO_IPV4),
            (".", NO_IPV4),
            ("--", NO_NAME),
            ("_.-", NO_NAME),
            (long.as_str(), NO_NAME),
            ("255.255.255.255", MANY_MACHINES),
            ("224.0.0.1", MANY_MACHINES),
            ("ff02::1", MANY_MACHINES),
            ("::ffff:239.1.2.3", MANY_MACHINES),
            ("fe80::2", NEEDS_INTERFACE),
        ] {
            let expected = Err(NoPlace::Host { host: host.to_owned(), problem });
            assert_eq!(parse_host(host), expected, "`{host}`");
            assert_eq!(parse_endpoint(&format!("{host}:29400")).map(|_| String::new()), expected, "`{host}`");
        }
        for host in [
            "h",
            "h.",
            "a-b",
            "_a",
            "1a",
            "12.a",
            "é",
            "127.1",
            "0",
            "010.0.0.1",
            "10.0.258",
            "4294967295",
            "10.255.255.255",
            "0.0.0.0",
            "::",
            "::1",
            "fd00::2",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(parse_host(host), Ok(host.to_owned()), "`{host}`");
        }
        assert_eq!(parse_host(&long[1..]), Ok(long[1..].to_owned()));
    }

    #[test]
    fn ipv6_address_without_brackets_is_detected() {
        for text in
            ["::1", " fe80::2:7", "::", "2001:db8::1", "2001:db8:0:0:0:0:0:1:29400", "::ffff:1.2.3.4:5"]
        {
            assert!(is_bare_ipv6(text), "`{text}`");
        }
        for text in ["", "h", "h:5", "[::1]", "[::1]:5", "1.2.3.4:5", ":5", "a:b:c", "::x"] {
            assert!(!is_bare_ipv6(text), "`{text}`");
        }
    }

    proptest! {
        #[test]
        fn any_endpoint_text_does_not_panic(text in "\\PC*", ports in "[a-z:\\[\\]0-9]{0,9}") {
            let _ = (parse_endpoint(&text), parse_endpoint(&ports), is_bare_ipv6(&text), is_bare_ipv6(&ports));
        }
    }
}
