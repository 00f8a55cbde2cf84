//! How the workers find each other: torchrun's choice between a store on a free port, one on a given port, and the
//! dynamic rendezvous (contract 1.4).

mod conf;

use rankrun_contract::rank::{NodeCount, NodeRank, RunId};

use conf::{C10D_KEYS, STATIC_KEYS, check_conf};

use super::endpoint::{parse_endpoint, parse_host};
use super::error::{CliError, Expected, Origin, SettingError};
use super::notice::{IgnoredBecause, Notice};
use super::option::OptionRow;
use super::python_text::parse_int;
use super::settings::{Setting, Settings};
use super::torchrun::{
    LOCAL_ADDR, MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, RDZV_BACKEND, RDZV_CONF, RDZV_ENDPOINT, RDZV_ID,
    STANDALONE,
};
use crate::spec::rendezvous::{NodeRange, RoundTimes};
use crate::spec::{Persona, RendezvousSpec};

/// `1` here: worker rank 0 opens the store instead of the agent.
const WORKER_STORE_VARIABLE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
/// Where agents meet when the endpoint names no port.
const C10D_PORT: u16 = 29_400;

/// Which rendezvous it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// What was said about the others has no effect, for this reason.
    Standalone(IgnoredBecause),
    C10d,
    Static {
        addr: String,
        port: u16,
    },
}

/// A setting that may have no effect, and the values that then need no mention.
type Unheard = (&'static OptionRow, [&'static str; 3]);

const BACKEND: Unheard = (&RDZV_BACKEND, ["", "static", "c10d"]);
const ENDPOINT: Unheard = (&RDZV_ENDPOINT, ["", "localhost:0", "localhost"]);
const CONF: Unheard = (&RDZV_CONF, ["", "", ""]);
const ID: Unheard = (&RDZV_ID, ["", "none", "none"]);
const ADDR: Unheard = (&MASTER_ADDR, ["", "127.0.0.1", "localhost"]);
const PORT: Unheard = (&MASTER_PORT, ["", "29500", "0"]);
const RANK: Unheard = (&NODE_RANK, ["", "0", "0"]);
const LOCAL: Unheard = (&LOCAL_ADDR, ["", "", ""]);

/// The rendezvous, and what was said about it that has no effect.
///
/// # Errors
/// Values that torchrun refuses too, and whatever needs more than this node.
pub(super) fn resolve_rendezvous(
    settings: &Settings<'_>,
    notices: &mut Vec<Notice>,
) -> Result<RendezvousSpec, CliError> {
    let port = settings.int(&MASTER_PORT)?;
    let node_rank = settings.int(&NODE_RANK)?;
    check_nodes(settings)?;
    match choose_mode(settings, port, notices)? {
        Mode::Standalone(because) => {
            check_conf(settings, C10D_KEYS)?;
            resolve_standalone(settings, because, notices)
        }
        Mode::C10d => {
            check_conf(settings, C10D_KEYS)?;
            resolve_c10d(settings, notices)
        }
        Mode::Static { addr, port } => {
            check_conf(settings, STATIC_KEYS)?;
            if let Some(Setting { origin, value }) = node_rank.filter(|rank| rank.value != 0) {
                return Err(refused(origin, value.to_string(), Expected::OnlyNodeRank));
            }
            say_unheard(settings, IgnoredBecause::FixedPort, &[LOCAL], notices);
            Ok(RendezvousSpec::Static {
                run_id: run_id(settings, notices)?,
                addr,
                port,
                local_addr: None,
                nodes: NodeCount::ONE,
                node_rank: NodeRank(0),
                times: RoundTimes::default(),
            })
        }
    }
}

fn choose_mode(
    settings: &Settings<'_>,
    master_port: Option<Setting<i128>>,
    notices: &mut Vec<Notice>,
) -> Result<Mode, CliError> {
    if settings.flag(&STANDALONE)? {
        return Ok(Mode::Standalone(IgnoredBecause::Standalone));
    }
    let backend = settings.text(&RDZV_BACKEND)?.filter(|backend| backend.value != "static");
    if let Some(Setting { origin, value }) = backend {
        return match value.as_str() {
            "c10d" => Ok(Mode::C10d),
            "" => Err(refused(origin, value, Expected::BackendName)),
            "etcd" | "etcd-v2" => Err(SettingError::NotSupported { origin, value }.into()),
            _ => Err(SettingError::PythonPlugin { origin, value, built_in: &["static", "c10d"] }.into()),
        };
    }
    if let Some((addr, port)) = endpoint(settings, None)? {
        say_unheard(settings, IgnoredBecause::Endpoint, &[ADDR, PORT], notices);
        return Ok(Mode::Static { addr, port });
    }
    let Some(Setting { origin, value }) = master_port else {
        return Ok(Mode::Standalone(IgnoredBecause::ImplicitStandalone));
    };
    let port = u16::try_from(value).map_err(|_| refused(origin, value.to_string(), Expected::Port))?;
    Ok(Mode::Static { addr: master_addr(settings)?, port })
}

fn resolve_standalone(
    settings: &Settings<'_>,
    because: IgnoredBecause,
    notices: &mut Vec<Notice>,
) -> Result<RendezvousSpec, CliError> {
    let typed_id = settings.text(&RDZV_ID)?.map(|id| id.value).filter(|id| !id.is_empty());
    let id_counts = settings.persona == Persona::Rankrun && because != IgnoredBecause::Standalone;
    let typed_id = typed_id.filter(|_| id_counts);
    say_unheard(settings, because, &[BACKEND, ENDPOINT, CONF], notices);
    if typed_id.is_none() {
        say_unheard(settings, because, &[ID], notices);
    }
    say_unheard(settings, because, &[ADDR, PORT, RANK], notices);
    let fresh = || settings.facts.world().fresh_uuid().to_string();
    Ok(RendezvousSpec::Standalone {
        run_id: RunId(typed_id.unwrap_or_else(fresh)),
        local_addr: local_addr(settings)?,
        worker_store: worker_store(settings),
    })
}

fn resolve_c10d(settings: &Settings<'_>, notices: &mut Vec<Notice>) -> Result<RendezvousSpec, CliError> {
    let found = endpoint(settings, Some(C10D_PORT))?;
    let (host, port) = found.unwrap_or_else(|| ("localhost".to_owned(), C10D_PORT));
    say_unheard(settings, IgnoredBecause::OnlyStatic, &[ADDR, PORT, RANK], notices);
    Ok(RendezvousSpec::C10d {
        run_id: run_id(settings, notices)?,
        host,
        port,
        local_addr: local_addr(settings)?,
        worker_store: worker_store(settings),
        nodes: NodeRange::ONE,
        is_host: None,
        node_rank: None,
        times: RoundTimes::default(),
    })
}

/// `--rdzv-endpoint`, where it is given and not empty.
fn endpoint(settings: &Settings<'_>, default_port: Option<u16>) -> Result<Option<(String, u16)>, CliError> {
    let found = settings.text(&RDZV_ENDPOINT)?.filter(|endpoint| !endpoint.value.is_empty());
    let Some(Setting { origin, value }) = found else { return Ok(None) };
    match parse_endpoint(&value).map(|(host, port)| (host, port.or(default_port))) {
        Some((host, Some(port))) => Ok(Some((host, port))),
        Some((_, None)) => Err(refused(origin, value, Expected::EndpointWithPort)),
        None => Err(refused(origin, value, Expected::Endpoint)),
    }
}

fn master_addr(settings: &Settings<'_>) -> Result<String, CliError> {
    match settings.text(&MASTER_ADDR)? {
        None => Ok("127.0.0.1".to_owned()),
        Some(Setting { origin, value }) => {
            parse_host(value.trim_start()).ok_or_else(|| refused(origin, value, Expected::Host))
        }
    }
}

fn local_addr(settings: &Settings<'_>) -> Result<Option<String>, CliError> {
    Ok(settings.text(&LOCAL_ADDR)?.map(|addr| addr.value).filter(|addr| !addr.is_empty()))
}

fn worker_store(settings: &Settings<'_>) -> bool {
    settings.facts.variable(WORKER_STORE_VARIABLE).is_some_and(|value| value == "1")
}

/// torch's `none` where it is not given, and a made-up one where it is empty.
fn run_id(settings: &Settings<'_>, notices: &mut Vec<Notice>) -> Result<RunId, CliError> {
    Ok(RunId(match settings.text(&RDZV_ID)? {
        None => "none".to_owned(),
        Some(id) if !id.value.is_empty() => id.value,
        Some(_) => {
            // torch: `str(uuid.uuid4().int)`.
            let run_id = settings.facts.world().fresh_uuid().as_u128().to_string();
            notices.push(Notice::MadeUpRunId { run_id: run_id.clone() });
            run_id
        }
    }))
}

/// Mentions each setting that was given and has no effect, unless its value is what happens anyway.
fn say_unheard(
    settings: &Settings<'_>,
    because: IgnoredBecause,
    unheard: &[Unheard],
    notices: &mut Vec<Notice>,
) {
    for (row, without_effect) in unheard {
        let found = settings.find(row);
        if let Some(found) = found.filter(|found| !without_effect.iter().any(|same| found.value == *same)) {
            notices.push(Notice::Ignored { origin: found.origin, because });
        }
    }
}

fn refused(origin: Origin, value: String, expected: Expected) -> CliError {
    SettingError::Refused { origin, value, expected }.into()
}

fn check_nodes(settings: &Settings<'_>) -> Result<(), CliError> {
    let Some(Setting { origin, value }) = settings.text(&NNODES)? else { return Ok(()) };
    match parse_nodes(&value) {
        None => Err(refused(origin, value, Expected::NodeCount)),
        Some((1, 1)) => Ok(()),
        Some(_) => Err(SettingError::NotSupported { origin, value }.into()),
    }
}

/// `N` or `MIN:MAX` with `0 < MIN ≤ MAX`.
fn parse_nodes(text: &str) -> Option<(i128, i128)> {
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    let (min, max) = (parse_int(min)?, parse_int(max)?);
    (0 < min && min <= max).then_some((min, max))
}

#[cfg(test)]
mod tests;
