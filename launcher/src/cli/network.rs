//! Which interface and which ports the job uses, and what its store may hold: `--iface`, `--port-range`, `--store-limit`.

use std::ffi::OsStr;

use rankrun_contract::env;

use super::error::{CliError, Expected, hint_for_port_range, hint_for_size};
use super::option::FromText;
use super::resolve::refused;
use super::settings::{Setting, Settings};
use bytesize::ByteSize;
use rankrun_core::device::{DeviceType, WorkerDevice};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::rendezvous::{NetworkSpec, NodeRange, PortRange};

const INTERFACE: Expected = Expected::new("the name of a network interface such as `eth0`", "eth0");
const PORT_RANGE: Expected =
    Expected::new("two ports from 1 to 65535, the lower one first, as in `29500-29599`", "29500-29599")
        .advised(hint_for_port_range);
const STORE_LIMIT: Expected =
    Expected::new("a size from `1MiB` to `7EiB`, such as `512MiB` or `4GiB`", "4GiB").advised(hint_for_size);

/// What a job of a few thousand workers needs for its own keys.
const SMALLEST_STORE: ByteSize = ByteSize(1 << 20);
/// Above it the reader of sizes goes over the end of its numbers in silence.
const LARGEST_STORE: ByteSize = ByteSize(7 << 60);
/// Linux's own limit.
const LONGEST_INTERFACE: usize = 15;
/// What the libraries of the workers read, and what stands before the name. To NCCL a bare name is a prefix, so that
/// `eth1` is `eth10` too; after `=` it is the whole name (NCCL's documentation of its variables). gloo knows whole names
/// only, and no `=`.
const INTERFACE_VARIABLES: [(&str, &str); 3] =
    [(env::INTERFACE, ""), (env::TENSORPIPE_INTERFACE, ""), (NCCL_INTERFACE, "=")];
/// Variables of libraries that otherwise look up the host's own name, which may mean 127.0.0.1. NCCL does not, and a host with
/// several fabrics would be kept to the slowest.
const NAME_LOOKING: [&str; 2] = [env::INTERFACE, env::TENSORPIPE_INTERFACE];
const NCCL_INTERFACE: &str = "NCCL_SOCKET_IFNAME";

/// The size that a store may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreLimit(ByteSize);

impl FromText for StoreLimit {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str()?.parse().ok().filter(|size| (SMALLEST_STORE..=LARGEST_STORE).contains(size)).map(Self)
    }

    fn expected() -> Option<Expected> {
        Some(STORE_LIMIT)
    }
}

impl FromText for PortRange {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_ports)
    }

    fn expected() -> Option<Expected> {
        Some(PORT_RANGE)
    }
}

/// How this node is reached, and where it may listen.
///
/// # Errors
/// A text that is not the name of an interface.
pub(super) fn resolve_network(settings: &Settings<'_>) -> Result<NetworkSpec, CliError> {
    let iface = match settings.get(&settings.args.iface) {
        Some(Setting { origin, value }) if !is_interface(&value) => {
            return Err(refused(origin, value, INTERFACE));
        }
        found => found.map(|found| found.value),
    };
    let ports = settings.get(&settings.args.port_range).map(|ports| ports.value);
    let store_limit = settings.get(&settings.args.store_limit).map(|limit| limit.value.0);
    let loopback_confines = settings.cli_flavor == CliFlavor::Rankrun;
    // What the workers use is not known yet.
    Ok(NetworkSpec { iface, ports, binds_loopback_only: loopback_confines, store_limit, nccl_chooses: false })
}

/// The variables that tell the workers' libraries the interface, where the user did not set them.
pub(super) fn interfaces(network: &NetworkSpec, facts: &Facts) -> Vec<(&'static str, String)> {
    let Some(iface) = &network.iface else { return Vec::new() };
    let unset = INTERFACE_VARIABLES.into_iter().filter(|(name, _)| facts.filled_variable(name).is_none());
    unset.map(|(name, sign)| (name, format!("{sign}{iface}"))).collect()
}

/// The variables that get the interface of the connection to the rendezvous store: none under the name torchrun.
pub(super) fn connection_interfaces(
    settings: &Settings<'_>,
    nodes: NodeRange,
    network: &NetworkSpec,
) -> Vec<&'static str> {
    if settings.cli_flavor != CliFlavor::Rankrun || !nodes.allows_many() || network.iface.is_some() {
        return Vec::new();
    }
    let is_unset = |name: &&str| settings.facts.filled_variable(name).is_none();
    NAME_LOOKING.into_iter().filter(is_unset).collect()
}

/// Whether NCCL chooses among this host's networks by itself.
pub(super) fn nccl_chooses(
    settings: &Settings<'_>,
    network: &NetworkSpec,
    worker_devices: &[WorkerDevice],
) -> bool {
    let uses_nccl = |worker: &WorkerDevice| matches!(worker.kind, DeviceType::Cuda | DeviceType::Rocm);
    settings.cli_flavor == CliFlavor::Rankrun
        && network.iface.is_none()
        && worker_devices.first().is_some_and(uses_nccl)
        && settings.facts.filled_variable(NCCL_INTERFACE).is_none()
}

fn is_interface(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_graphic() && !"/,:".contains(letter);
    !name.is_empty()
        && name.len() <= LONGEST_INTERFACE
        && name.chars().all(fits)
        && !matches!(name, "." | "..")
}

/// `29500-29599`, or one port.
fn parse_ports(text: &str) -> Option<PortRange> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_port(first.trim())?, parse_port(last.trim())?);
    (first <= last).then_some(PortRange { first, last })
}

fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port > 0)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use proptest::prelude::*;

    use super::*;
    use crate::cli::{Command, Launch, interpret};
    use rankrun_core::facts::fake::FakeWorld;

    fn launch(words: &[&str], environment: &[(&str, &str)]) -> Result<Launch, CliError> {
        let argv: Vec<OsString> = words.iter().chain(&["--no-python", "true"]).map(OsString::from).collect();
        let mut environment = environment.to_vec();
        environment.push(("PATH", "/usr/bin"));
        match interpret(&argv, &FakeWorld::default().program("/usr/bin/true").facts(&environment))? {
            Command::Launch(launch) => Ok(*launch),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn port_range_is_two_ordered_ports() {
        for (text, first, last) in
            [("29500-29599", 29_500, 29_599), (" 1 - 65535 ", 1, 65_535), ("7-7", 7, 7), ("7", 7, 7)]
        {
            assert_eq!(parse_ports(text), Some(PortRange { first, last }), "`{text}`");
        }
        for text in ["", "-", "5-", "-5", "6-5", "0-5", "1-65536", "+1-5", "1:5", "1-2-3", "a-b"] {
            assert_eq!(parse_ports(text), None, "`{text}`");
        }
    }

    #[test]
    fn interface_name_must_be_valid_for_kernel() {
        for name in ["eth0", "enp0s31f6", "br-1a2b3c4d5e6f", "ib0.8001", "bond0@x"] {
            assert!(is_interface(name), "`{name}`");
        }
        for name in ["", "a b", "a/b", "eth0,eth1", "eth0:1", "..", "sixteen_letters_", "é"] {
            assert!(!is_interface(name), "`{name}`");
        }
    }

    proptest! {
        #[test]
        fn parsed_port_range_is_ordered_and_nonzero(text in "[0-9 -]{0,12}|\\PC{0,12}") {
            prop_assert!(parse_ports(&text).is_none_or(|ports| 0 < ports.first && ports.first <= ports.last));
        }
    }

    #[test]
    fn network_settings_are_rankrun_options_and_shared_variables() {
        let network = |words: &[&str], environment: &[(&str, &str)]| {
            let spec = launch(words, environment).unwrap().spec;
            (spec.network, spec.defaults.interfaces)
        };
        let both =
            [("GLOO_SOCKET_IFNAME", "eth0"), ("TP_SOCKET_IFNAME", "eth0"), ("NCCL_SOCKET_IFNAME", "=eth0")];
        let both = both.map(|(name, value)| (name, value.to_owned()));
        let ports = Some(PortRange { first: 5, last: 6 });
        let iface = Some("eth0".to_owned());
        let store_limit = Some(ByteSize(64 << 20));
        let spec = NetworkSpec { iface, ports, binds_loopback_only: true, store_limit, nccl_chooses: false };
        assert_eq!(
            network(&["rankrun", "--iface", "eth0", "--port-range=5-6", "--store-limit", "64MiB"], &[]),
            (spec.clone(), both.to_vec())
        );
        let variables =
            [("RANKRUN_IFACE", "eth0"), ("RANKRUN_PORT_RANGE", "5-6"), ("RANKRUN_STORE_LIMIT", "64 mib")];
        let torchrun = NetworkSpec { binds_loopback_only: false, ..spec };
        assert_eq!(network(&["torchrun"], &variables), (torchrun, both.to_vec()));
        let none = NetworkSpec { binds_loopback_only: true, ..NetworkSpec::default() };
        assert_eq!(network(&["rankrun"], &[]), (none, vec![]));
        assert!(launch(&["torchrun", "--iface", "eth0"], &[]).is_err());
        // What the user says about a library stands.
        let own = [("NCCL_SOCKET_IFNAME", "=ib0"), ("GLOO_SOCKET_IFNAME", "")];
        assert_eq!(network(&["rankrun", "--iface=eth0"], &own).1, both[..2]);
    }

    #[test]
    fn store_limit_above_largest_number_is_refused() {
        for limit in ["17EiB", "99999999999999EiB", "8EiB"] {
            let error = launch(&["rankrun", "--store-limit", limit], &[]).unwrap_err();
            assert!(error.to_string().contains("is not a size from `1MiB` to `7EiB`"), "{error}");
        }
    }

    #[test]
    fn multi_node_launch_exports_interface_variables_unless_set() {
        let variables = |words: &[&str], environment: &[(&str, &str)]| {
            launch(words, environment).unwrap().spec.defaults.connection_interfaces
        };
        let two = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h:7"];
        let own = |more: &[&'static str]| [["rankrun"].as_slice(), &two, more].concat();
        assert_eq!(variables(&own(&[]), &[]), ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"]);
        // What the user says stands; an empty value says nothing.
        let said = [("GLOO_SOCKET_IFNAME", "ib0"), ("TP_SOCKET_IFNAME", "")];
        assert_eq!(variables(&own(&[]), &said), ["TP_SOCKET_IFNAME"]);
        for none in [own(&["--iface", "eth0"]), vec!["rankrun"], [["torchrun"].as_slice(), &two].concat()] {
            assert!(variables(&none, &[]).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn invalid_network_setting_error_names_value() {
        for (words, text) in [
            (["rankrun", "--iface=a/b"], "`--iface` is `a/b`, which is not the name of a network interface"),
            (["rankrun", "--iface="], "`--iface` is empty, which is not the name of a network interface"),
            (["rankrun", "--port-range=9-8"], "`--port-range` is `9-8`, which is not two ports"),
            (["rankrun", "--port-range=0-8"], "`--port-range` is `0-8`, which is not two ports"),
            (
                ["rankrun", "--store-limit=1GX"],
                "`--store-limit` is `1GX`, which is not a size from `1MiB` to",
            ),
            (["rankrun", "--store-limit=1023KiB"], "`--store-limit` is `1023KiB`, which is not a size"),
        ] {
            let error = launch(&words, &[]).unwrap_err();
            assert!(error.to_string().starts_with(text), "{error}");
            assert_eq!(error.exit_code(), 1);
        }
    }
}
