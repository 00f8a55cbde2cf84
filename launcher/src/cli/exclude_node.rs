//! Nodes that take no part in a job: `--exclude-node`, and the value of `--exclude-node-after`.

use std::ffi::OsStr;
use std::path::Path;

use super::error::Expected;
use super::option::FromText;
use super::settings::Settings;
use rankrun_core::facts::Facts;
use rankrun_core::spec::restart::FailureShare;

const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Linux knows no longer one.
const MAX_HOSTNAME: usize = 65;
const NAMES: Expected = Expected::new("a list of names of nodes such as `gpu7,gpu9`", "gpu7,gpu9");
const SHARE: Expected =
    Expected::new("K/N, two numbers with K from 1 to N and N up to 1000, such as `3/5`", "3/5");

/// Names with a comma between them.
#[derive(Debug, Clone)]
pub(super) struct NodeNames(pub(super) Vec<String>);

impl FromText for NodeNames {
    fn from_text(text: &OsStr) -> Option<Self> {
        let names: Vec<String> = text.to_str()?.split(',').map(|name| name.trim().to_owned()).collect();
        let is_name = |name: &String| !name.is_empty() && !name.contains(char::is_whitespace);
        names.iter().all(is_name).then_some(Self(names))
    }

    fn expected() -> Option<Expected> {
        Some(NAMES)
    }
}

/// `K/N`
#[derive(Debug, Clone, Copy)]
pub(super) struct FailureShareText(pub(super) FailureShare);

impl FromText for FailureShareText {
    fn from_text(text: &OsStr) -> Option<Self> {
        let (failures, restarts) = text.to_str()?.trim().split_once('/')?;
        let share =
            FailureShare { failures: failures.trim().parse().ok()?, restarts: restarts.trim().parse().ok()? };
        let is_good =
            (1..=share.restarts).contains(&share.failures) && share.restarts <= FailureShare::MAX_RESTARTS;
        is_good.then_some(Self(share))
    }

    fn expected() -> Option<Expected> {
        Some(SHARE)
    }
}

/// The name of this machine, as the kernel has it; empty if it has none.
pub(super) fn hostname(facts: &Facts) -> String {
    let name = facts.world().read_first_bytes(Path::new(HOSTNAME), MAX_HOSTNAME);
    String::from_utf8_lossy(&name).trim().to_owned()
}

/// Whether both name one machine. Where one of them has no domain, that of the other does not count.
pub(super) fn is_own_name(name: &str, hostname: &str) -> bool {
    let is_full = |name: &str| name.contains('.');
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_same = if is_full(name) && is_full(hostname) {
        name.eq_ignore_ascii_case(hostname)
    } else {
        first(name) == first(hostname)
    };
    is_same && !hostname.is_empty()
}

/// The name in `--exclude-node` that is this node's: of the machine, or its address in `--local-addr`.
pub(super) fn excluded_name(settings: &Settings<'_>) -> Option<String> {
    let NodeNames(names) = settings.get(&settings.args.exclude_node)?.value;
    let hostname = hostname(settings.facts);
    let address = settings.get(&settings.args.torchrun.local_addr).map(|address| address.value);
    let is_own = |name: &String| is_own_name(name, &hostname) || address.as_ref() == Some(name);
    names.into_iter().find(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_shares_are_read_or_refused() {
        let names = |text: &str| NodeNames::from_text(OsStr::new(text)).map(|NodeNames(names)| names);
        assert_eq!(names("a, b.c"), Some(vec!["a".to_owned(), "b.c".to_owned()]));
        for text in ["", "a,", "a b", ","] {
            assert_eq!(names(text), None, "{text}");
        }
        let share =
            |text: &str| FailureShareText::from_text(OsStr::new(text)).map(|FailureShareText(share)| share);
        assert_eq!(share("3/5"), Some(FailureShare { failures: 3, restarts: 5 }));
        for text in ["", "3", "0/5", "6/5", "1/1001", "-1/2", "a/b", "1/2/3"] {
            assert_eq!(share(text), None, "{text}");
        }
    }

    #[test]
    fn own_name_is_with_or_without_domain() {
        for (name, is_own) in
            [("n7", true), ("n7.cluster", true), ("n70", false), ("cluster", false), ("", false)]
        {
            assert_eq!(is_own_name(name, "n7.cluster"), is_own, "{name}");
        }
        assert!(is_own_name("N7.cluster", "n7") && !is_own_name("n7.other", "n7.cluster"));
        assert!(!is_own_name("", ""));
    }
}
