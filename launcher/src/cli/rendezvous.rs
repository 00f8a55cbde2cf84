//! How nodes and workers find each other: torchrun's choice between a store on a free port, one on a given port, and
//! the dynamic rendezvous (contract 1.4).

mod conf;
mod nodes;
mod times;

use std::net::IpAddr;

use rankrun_contract::rank::{NodeCount, RunId};

use conf::{C10D_KEYS, ConfItem, STATIC_KEYS, read_conf, unknown_key_notices};
pub(super) use nodes::parse_nodes;
use nodes::{Nodes, check_empty_run_id, pod_index, rank_among, rank_in_order, refuse_pod_without_address};
pub(super) use times::LeaseTime;
use times::{OF_C10D, OF_SEVERAL_NODES, refuse_idle, resolve_times};

use super::endpoint::{NoPlace, is_bare_ipv6, parse_endpoint, parse_host};
use super::error::{CliError, Expected, Origin, Problem, SettingError, hint_for_port_in_host};
use super::error::{hint_for_brackets, hint_for_place, hint_for_port};
use super::resolve::refused;
use super::settings::{Setting, Settings};
use rankrun_core::notice::{IgnoredBecause, Notice};
use rankrun_core::spec::rendezvous::{NodeRange, RoundTimes, STATIC_PORT};
use rankrun_core::spec::{CliFlavor, RendezvousSpec};

const PORT_OF_MANY: Expected =
    Expected::new("a port from 1 to 65535, which the other nodes know too", "29500").advised(hint_for_port);
const PORT_NUMBER: Expected = Expected::new("a port from 0 to 65535", "29500").advised(hint_for_port);
const HOST: Expected = Expected::new("a host name or an address", "node0").advised(hint_for_place);
const ENDPOINT_WITH_PORT: Expected =
    Expected::new("HOST:PORT: a static rendezvous needs the port", "node0:29400").advised(hint_for_place);
const ENDPOINT_OF_MANY: Expected =
    Expected::new("HOST:PORT with a port above 0, which the other nodes know too", "node0:29400")
        .advised(hint_for_place);
const BRACKETED_ENDPOINT: Expected =
    Expected::new("clear: an IPv6 address stands in brackets, as in `[::1]:29400`", "node0:29400")
        .advised(hint_for_brackets);
const ANY_ENDPOINT: Expected = Expected::new(
    "HOST or HOST:PORT, with a port from 0 to 65535 and an IPv6 address in brackets",
    "node0:29400",
)
.advised(hint_for_place);
const BACKEND_NAME: Expected = Expected::new("the name of a rendezvous backend", "c10d");

/// `1` here: worker rank 0 opens the store instead of the agent.
const WORKER_STORE_VARIABLE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
/// `1`: torchrun's agents compute the ranks of each other instead of telling them.
const IDENTICAL_VARIABLE: &str = "TORCH_ELASTIC_WORKER_IDENTICAL";
/// Where agents meet when the endpoint names no port.
const C10D_PORT: u16 = 29_400;

/// Which rendezvous it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// What was said about the others has no effect, for this reason.
    Standalone(IgnoredBecause),
    C10d,
    Static(NamedEndpoint),
}

/// Where nodes meet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedEndpoint {
    host: String,
    port: u16,
    /// What names the host, where anything does.
    named_by: Option<Origin>,
}

/// A setting that may have no effect, and the values that then need no mention.
type IgnorableSetting = (&'static str, [&'static str; 3]);

const BACKEND: IgnorableSetting = ("rdzv-backend", ["", "static", "c10d"]);
const ENDPOINT: IgnorableSetting = ("rdzv-endpoint", ["", "localhost:0", "localhost"]);
const CONF: IgnorableSetting = ("rdzv-conf", ["", "", ""]);
const ID: IgnorableSetting = ("rdzv-id", ["", "none", "none"]);
const ADDR: IgnorableSetting = ("master-addr", ["", "127.0.0.1", "localhost"]);
const PORT: IgnorableSetting = ("master-port", ["", "29500", "0"]);
const RANK: IgnorableSetting = ("node-rank", ["", "0", "0"]);
const LOCAL: IgnorableSetting = ("local-addr", ["", "", ""]);
/// `0.0.0.0` and `::` on a node that is not to host.
const ONLY_HERE: Problem = Problem {
    text: "any address of this machine: the node would look for the store here, and not open it",
    hint: "name the node that hosts the store; on that one `--rdzv-conf is_host=1` keeps this address",
};

/// The rendezvous, and what was said about it that has no effect.
///
/// # Errors
/// Values that torchrun refuses too, and what would be waited for in vain.
pub(super) fn resolve_rendezvous(
    settings: &Settings<'_>,
    notices: &mut Vec<Notice>,
) -> Result<RendezvousSpec, CliError> {
    notices.extend(unknown_key_notices(settings)?);
    let port = settings.get(&settings.args.torchrun.master_port);
    let node_rank = settings.get(&settings.args.torchrun.node_rank);
    let nodes = Nodes::of(settings)?;
    match choose_mode(settings, port, &nodes, notices)? {
        Mode::Standalone(because) => {
            let conf = read_conf(settings, C10D_KEYS, RoundTimes::default())?;
            if let Some(ConfItem { origin, item, yes: false }) = conf.is_host {
                return Err(conf::item_error(origin, &item, conf::NO_HOST).into());
            }
            nodes.check_single_node(notices)?;
            refuse_idle(settings, &OF_SEVERAL_NODES)?;
            resolve_standalone(settings, &because, notices)
        }
        Mode::C10d => resolve_c10d(settings, &nodes, node_rank, notices),
        Mode::Static(NamedEndpoint { host: addr, port, named_by }) => {
            let conf = read_conf(settings, STATIC_KEYS, RoundTimes::static_defaults())?;
            let nodes = nodes.fixed(notices);
            let run_id = run_id(settings, NodeRange { min: nodes, max: nodes }, notices)?;
            let is_many = nodes != NodeCount::ONE;
            let node_rank = match node_rank {
                None if is_many => pod_index(settings)?,
                given => given,
            };
            let node_rank = rank_among(node_rank, nodes)?;
            if is_many {
                refuse_idle(settings, &OF_C10D)?;
                add_worker_count_notice(settings, notices);
            } else {
                refuse_idle(settings, &OF_SEVERAL_NODES)?;
                add_ignored_settings(settings, &IgnoredBecause::FixedPort, &[LOCAL], notices);
            }
            Ok(RendezvousSpec::Static {
                run_id,
                addr,
                port,
                named_by: named_by.map(|origin| origin.to_string()),
                local_addr: if is_many { local_addr(settings)? } else { None },
                nodes,
                node_rank,
                // One time for everything: for the nodes to come, and for what each of them tells.
                times: resolve_times(settings, conf).map(|times| RoundTimes {
                    read: times.join,
                    connect: times.join,
                    ..times
                })?,
            })
        }
    }
}

fn choose_mode(
    settings: &Settings<'_>,
    master_port: Option<Setting<i128>>,
    nodes: &Nodes,
    notices: &mut Vec<Notice>,
) -> Result<Mode, CliError> {
    if let Some(Setting { origin, .. }) = settings.get(&settings.args.torchrun.standalone) {
        return Ok(Mode::Standalone(IgnoredBecause::Standalone(origin)));
    }
    let backend =
        settings.get(&settings.args.torchrun.rdzv_backend).filter(|backend| backend.value != "static");
    if let Some(Setting { origin, value }) = backend {
        return match value.as_str() {
            "c10d" => Ok(Mode::C10d),
            "" => Err(refused(origin, value, BACKEND_NAME)),
            "etcd" | "etcd-v2" => Err(SettingError::not_supported(origin, &value).into()),
            _ => Err(SettingError::python_plugin(origin, &value, &["static", "c10d"]).into()),
        };
    }
    let is_many = nodes.range.allows_many();
    if let Some(Endpoint { origin, text, host, port }) = endpoint(settings, None)? {
        if is_many && port == 0 {
            return Err(refused(origin, text, ENDPOINT_OF_MANY));
        }
        add_ignored_settings(settings, &IgnoredBecause::Endpoint(origin.clone()), &[ADDR, PORT], notices);
        return Ok(Mode::Static(NamedEndpoint { host, port, named_by: Some(origin) }));
    }
    let port = match master_port {
        None if is_many => STATIC_PORT,
        None => return Ok(Mode::Standalone(IgnoredBecause::ImplicitStandalone)),
        Some(Setting { origin, value }) => match u16::try_from(value) {
            Ok(0) if is_many => return Err(refused(origin, value.to_string(), PORT_OF_MANY)),
            Ok(port) => port,
            Err(_) => return Err(refused(origin, value.to_string(), PORT_NUMBER)),
        },
    };
    let (host, named_by) = match settings.get(&settings.args.torchrun.master_addr) {
        None => {
            if is_many {
                refuse_pod_without_address(settings, "PET_MASTER_ADDR", "")?;
            }
            ("127.0.0.1".to_owned(), None)
        }
        Some(Setting { origin, value }) => (usable_host(&origin, &value, value.trim_start())?, Some(origin)),
    };
    Ok(Mode::Static(NamedEndpoint { host, port, named_by }))
}

fn resolve_standalone(
    settings: &Settings<'_>,
    because: &IgnoredBecause,
    notices: &mut Vec<Notice>,
) -> Result<RendezvousSpec, CliError> {
    let typed_id =
        settings.get(&settings.args.torchrun.rdzv_id).map(|id| id.value).filter(|id| !id.is_empty());
    let is_asked_for = matches!(because, IgnoredBecause::Standalone(_));
    let id_counts = settings.cli_flavor == CliFlavor::Rankrun && !is_asked_for;
    let typed_id = typed_id.filter(|_| id_counts);
    add_ignored_settings(settings, because, &[BACKEND, ENDPOINT, CONF], notices);
    if typed_id.is_none() {
        add_ignored_settings(settings, because, &[ID], notices);
    }
    add_ignored_settings(settings, because, &[ADDR, PORT, RANK], notices);
    let fresh = || settings.facts.world().fresh_uuid().to_string();
    Ok(RendezvousSpec::Standalone {
        run_id: RunId(typed_id.unwrap_or_else(fresh)),
        local_addr: local_addr(settings)?,
        worker_store: worker_store(settings),
    })
}

fn resolve_c10d(
    settings: &Settings<'_>,
    nodes: &Nodes,
    node_rank: Option<Setting<i128>>,
    notices: &mut Vec<Notice>,
) -> Result<RendezvousSpec, CliError> {
    let conf = read_conf(settings, C10D_KEYS, RoundTimes::default())?;
    let is_many = nodes.range.allows_many();
    let NamedEndpoint { host, port, named_by } = match endpoint(settings, Some(C10D_PORT))? {
        Some(Endpoint { origin, text, host, port }) => {
            // torchrun looks for the store of another agent on this machine then.
            let looks_for_store = conf.is_host.is_some() || settings.cli_flavor == CliFlavor::Torchrun;
            if !looks_for_store && host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
                return Err(host_error(origin, &text, &host, ONLY_HERE).into());
            }
            NamedEndpoint { host, port, named_by: Some(origin) }
        }
        None => {
            if is_many {
                refuse_pod_without_address(settings, "PET_RDZV_ENDPOINT", ":29400")?;
                notices.push(Notice::OnThisMachine { port: C10D_PORT });
            }
            NamedEndpoint { host: "localhost".to_owned(), port: C10D_PORT, named_by: None }
        }
    };
    if port == 0 {
        nodes.check_single_node(notices)?;
    }
    add_ignored_settings(settings, &IgnoredBecause::OnlyStatic, &[ADDR, PORT], notices);
    let orders = is_many && settings.cli_flavor == CliFlavor::Rankrun;
    if is_many {
        add_worker_count_notice(settings, notices);
    }
    if !orders {
        add_ignored_settings(settings, &IgnoredBecause::OnlyStatic, &[RANK], notices);
    }
    Ok(RendezvousSpec::C10d {
        run_id: run_id(settings, nodes.range, notices)?,
        host,
        port,
        named_by: named_by.map(|origin| origin.to_string()),
        local_addr: local_addr(settings)?,
        worker_store: worker_store(settings),
        nodes: nodes.range,
        is_host: conf.is_host.as_ref().map(|said| said.yes),
        node_rank: if orders { rank_in_order(node_rank)? } else { None },
        times: resolve_times(settings, conf)?,
    })
}

/// A notice for the variable that saves torchrun's agents the exchange of worker counts: rankrun's always exchange them.
fn add_worker_count_notice(settings: &Settings<'_>, notices: &mut Vec<Notice>) {
    if settings.facts.variable(IDENTICAL_VARIABLE).is_some_and(|value| value == "1") {
        let origin = Origin::Variable(IDENTICAL_VARIABLE.to_owned());
        notices.push(Notice::Ignored { origin, because: IgnoredBecause::WorkerCountsAreExchanged });
    }
}

/// A place that was named.
struct Endpoint {
    origin: Origin,
    text: String,
    host: String,
    port: u16,
}

/// `--rdzv-endpoint`, where it is given and not empty.
fn endpoint(settings: &Settings<'_>, default_port: Option<u16>) -> Result<Option<Endpoint>, CliError> {
    let found =
        settings.get(&settings.args.torchrun.rdzv_endpoint).filter(|endpoint| !endpoint.value.is_empty());
    let Some(Setting { origin, value }) = found else { return Ok(None) };
    // torch takes what stands behind the last colon for a port, whatever it is.
    if settings.cli_flavor == CliFlavor::Rankrun && is_bare_ipv6(&value) {
        return Err(refused(origin, value, BRACKETED_ENDPOINT));
    }
    match parse_endpoint(&value).map(|(host, port)| (host, port.or(default_port))) {
        Ok((host, Some(port))) => Ok(Some(Endpoint { origin, text: value, host, port })),
        Ok((_, None)) => Err(refused(origin, value, ENDPOINT_WITH_PORT)),
        Err(problem) => Err(no_place(origin, value, (problem, ANY_ENDPOINT))),
    }
}

fn no_place(origin: Origin, value: String, (problem, expected): (NoPlace, Expected)) -> CliError {
    match problem {
        NoPlace::Unreadable => refused(origin, value, expected),
        NoPlace::Host { host, problem } => host_error(origin, &value, &host, problem).into(),
    }
}

/// No node can be reached at the host: torchrun would try it until its time is over.
fn host_error(origin: Origin, value: &str, host: &str, problem: Problem) -> SettingError {
    let subject = if value == host { "which is".to_owned() } else { format!("whose host `{host}` is") };
    let hint = hint_for_port_in_host(&origin, value).unwrap_or_else(|| problem.hint.to_owned());
    SettingError::of_value(origin, value, format!("{subject} {}", problem.text), hint)
}

/// The host that stands in this text, which is the value or the part of it that counts.
fn usable_host(origin: &Origin, value: &str, text: &str) -> Result<String, CliError> {
    parse_host(text).map_err(|problem| no_place(origin.clone(), value.to_owned(), (problem, HOST)))
}

/// torchrun publishes any text; a text that is not a host cannot be reached.
fn local_addr(settings: &Settings<'_>) -> Result<Option<String>, CliError> {
    match settings.get(&settings.args.torchrun.local_addr).filter(|addr| !addr.value.is_empty()) {
        Some(Setting { origin, value }) if settings.cli_flavor == CliFlavor::Rankrun => {
            usable_host(&origin, &value, &value).map(Some)
        }
        found => Ok(found.map(|addr| addr.value)),
    }
}

fn worker_store(settings: &Settings<'_>) -> bool {
    settings.facts.variable(WORKER_STORE_VARIABLE).is_some_and(|value| value == "1")
}

/// torch's `none` where it is not given, and a made-up one where it is empty.
fn run_id(settings: &Settings<'_>, nodes: NodeRange, notices: &mut Vec<Notice>) -> Result<RunId, CliError> {
    Ok(RunId(match settings.get(&settings.args.torchrun.rdzv_id) {
        None => "none".to_owned(),
        Some(id) if !id.value.is_empty() => id.value,
        Some(id) => {
            check_empty_run_id(&id.origin, nodes, settings.cli_flavor)?;
            // torch: `str(uuid.uuid4().int)`.
            let run_id = settings.facts.world().fresh_uuid().as_u128().to_string();
            notices.push(Notice::MadeUpRunId { run_id: run_id.clone() });
            run_id
        }
    }))
}

/// Mentions each setting that was given and has no effect, unless its value is what happens anyway.
fn add_ignored_settings(
    settings: &Settings<'_>,
    because: &IgnoredBecause,
    ignorable: &[IgnorableSetting],
    notices: &mut Vec<Notice>,
) {
    for (option, without_effect) in ignorable {
        let found = settings.find(option);
        if let Some(found) = found.filter(|found| !without_effect.iter().any(|same| found.value == *same)) {
            notices.push(Notice::Ignored { origin: found.origin, because: because.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
