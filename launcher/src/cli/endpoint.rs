//! The syntax of `--rdzv-endpoint` (contract 1.8).

use std::net::Ipv6Addr;

/// Host and port, as torch reads them; no port where none is written.
///
/// `None` for what torch cannot read. A bare IPv6 address is misread as torch misreads it: `::1` is port 1 of `:`.
pub(super) fn parse_endpoint(text: &str) -> Option<(String, Option<u16>)> {
    let text = text.trim();
    if text.is_empty() {
        return Some(("localhost".to_owned(), None));
    }
    let in_brackets = text.starts_with('[') && text.ends_with(']');
    match text.rsplit_once(':').filter(|_| !in_brackets) {
        Some((host, port)) => Some((parse_host(host)?, Some(parse_port(port)?))),
        None => Some((parse_host(text)?, None)),
    }
}

/// A host as torch's endpoints have it: letters, digits, `_`, `.`, `:`, `-`, in brackets or not.
pub(super) fn parse_host(text: &str) -> Option<String> {
    let host = text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text);
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | ':' | '-');
    (!host.is_empty() && host.chars().all(fits)).then(|| host.to_owned())
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
    fn endpoints_are_torchs() {
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
            ("::1", ":", Some(1)),
            ("fe80::2:7", "fe80::2", Some(7)),
        ] {
            assert_eq!(parse_endpoint(text), Some((host.to_owned(), port)), "`{text}`");
        }
        for text in
            ["h:", "h:000001", "h:65536", "h:-1", "h:x", ":5", "tcp://h:1", "a b:1", "h/:1", "[]", "[a]:[b]"]
        {
            assert_eq!(parse_endpoint(text), None, "`{text}`");
        }
    }

    #[test]
    fn an_ipv6_address_without_brackets_is_seen() {
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
        fn no_text_panics(text in "\\PC*", ports in "[a-z:\\[\\]0-9]{0,9}") {
            let _ = (parse_endpoint(&text), parse_endpoint(&ports), is_bare_ipv6(&text), is_bare_ipv6(&ports));
        }
    }
}
