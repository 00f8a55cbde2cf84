//! How the workers find each other: torchrun's choice between a store on a free port and one on a given port.

use rankrun_contract::rank::RunId;

use super::error::{CliError, ConfProblem, Expected, Origin, SettingError};
use super::notice::{IgnoredBecause, Notice};
use super::option::OptionRow;
use super::python_text::parse_int;
use super::settings::{Setting, Settings};
use super::torchrun::{
    LOCAL_ADDR, MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, RDZV_BACKEND, RDZV_CONF, RDZV_ENDPOINT, RDZV_ID,
    STANDALONE,
};
use crate::spec::{Persona, RendezvousSpec};

/// `1` here: worker rank 0 opens the store instead of the agent.
const WORKER_STORE_VARIABLE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
/// Settings of the rendezvous that have options of their own; torchrun fails on them.
const RESERVED_KEYS: [&str; 6] = ["backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"];

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
    check_conf(settings)?;
    let standalone = settings.flag(&STANDALONE)?;
    if !standalone {
        check_backend(settings)?;
    }
    if let Some(port) = port.filter(|_| !standalone) {
        return resolve_static(settings, &port, node_rank, notices);
    }
    let because = if standalone { IgnoredBecause::Standalone } else { IgnoredBecause::ImplicitStandalone };
    let ours = settings.persona == Persona::Rankrun;
    let typed_id = settings.text(&RDZV_ID)?.map(|id| id.value).filter(|id| !id.is_empty());
    let id_counts = ours && !standalone && typed_id.is_some();
    for (row, without_effect) in [
        (&RDZV_BACKEND, ["", "static", "c10d"]),
        (&RDZV_ENDPOINT, ["", "localhost:0", "localhost"]),
        (&RDZV_CONF, ["", "", ""]),
        (&RDZV_ID, ["", "none", "none"]),
        (&MASTER_ADDR, ["", "127.0.0.1", "localhost"]),
        (&MASTER_PORT, ["", "29500", "0"]),
        (&NODE_RANK, ["", "0", "0"]),
    ] {
        let found = settings.find(row).filter(|_| row != &RDZV_ID || !id_counts);
        if let Some(found) = found.filter(|found| !without_effect.iter().any(|same| found.value == *same)) {
            notices.push(Notice::Ignored { origin: found.origin, because });
        }
    }
    let fresh = || settings.facts.world().fresh_uuid().to_string();
    Ok(RendezvousSpec::Standalone {
        run_id: RunId(typed_id.filter(|_| id_counts).unwrap_or_else(fresh)),
        local_addr: settings.text(&LOCAL_ADDR)?.map(|addr| addr.value).filter(|addr| !addr.is_empty()),
        worker_store: settings.facts.variable(WORKER_STORE_VARIABLE).is_some_and(|value| value == "1"),
    })
}

fn resolve_static(
    settings: &Settings<'_>,
    port: &Setting<i128>,
    node_rank: Option<Setting<i128>>,
    notices: &mut Vec<Notice>,
) -> Result<RendezvousSpec, CliError> {
    if let Some(Setting { origin, value }) = node_rank.filter(|rank| rank.value != 0) {
        return Err(refused(origin, value.to_string(), Expected::OnlyNodeRank));
    }
    if let Some(Setting { origin, value }) =
        settings.text(&RDZV_CONF)?.filter(|conf| !conf.value.trim().is_empty())
    {
        return Err(SettingError::NotSupported { origin, value }.into());
    }
    let number = u16::try_from(port.value)
        .map_err(|_| refused(port.origin.clone(), port.value.to_string(), Expected::Port))?;
    let addr = match settings.text(&MASTER_ADDR)? {
        None => "127.0.0.1".to_owned(),
        Some(Setting { origin, value }) => match parse_host(&value) {
            Some(host) => host,
            None => return Err(refused(origin, value, Expected::Host)),
        },
    };
    if let Some(found) = settings.find(&LOCAL_ADDR).filter(|addr| !addr.value.is_empty()) {
        notices.push(Notice::Ignored { origin: found.origin, because: IgnoredBecause::FixedPort });
    }
    let run_id = match settings.text(&RDZV_ID)? {
        None => "none".to_owned(),
        Some(id) if !id.value.is_empty() => id.value,
        Some(_) => {
            // torch: `str(uuid.uuid4().int)`.
            let run_id = settings.facts.world().fresh_uuid().as_u128().to_string();
            notices.push(Notice::MadeUpRunId { run_id: run_id.clone() });
            run_id
        }
    };
    Ok(RendezvousSpec::Static { run_id: RunId(run_id), addr, port: number })
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

/// Without `--standalone` only the default backend is there, and only without an endpoint.
fn check_backend(settings: &Settings<'_>) -> Result<(), CliError> {
    let refuse_later = |row: &'static OptionRow, supported: &str| match settings.text(row)? {
        Some(Setting { origin, value }) if value != supported => {
            Err(CliError::Setting(SettingError::NotSupported { origin, value }))
        }
        _ => Ok(()),
    };
    if let Some(Setting { origin, value }) =
        settings.text(&RDZV_BACKEND)?.filter(|name| name.value.is_empty())
    {
        return Err(refused(origin, value, Expected::BackendName));
    }
    refuse_later(&RDZV_BACKEND, "static")?;
    refuse_later(&RDZV_ENDPOINT, "")
}

/// The syntax of `--rdzv-conf`, which torchrun checks whatever the mode.
fn check_conf(settings: &Settings<'_>) -> Result<(), CliError> {
    let Some(Setting { origin, value }) = settings.text(&RDZV_CONF)? else { return Ok(()) };
    if value.trim().is_empty() {
        return Ok(());
    }
    for item in value.trim().split(',') {
        let (key, text) = item.split_once('=').unwrap_or((item, ""));
        let problem = match (key.trim(), text.trim()) {
            ("", _) => ConfProblem::NoKey,
            (_, "") => ConfProblem::NoValue,
            (key, _) if RESERVED_KEYS.contains(&key) => ConfProblem::Reserved,
            _ => continue,
        };
        return Err(SettingError::RendezvousConf { origin, item: item.to_owned(), problem }.into());
    }
    Ok(())
}

/// A host as torch's endpoints have it: letters, digits, `_`, `.`, `:`, `-`, in brackets or not.
fn parse_host(text: &str) -> Option<String> {
    let host = text.trim_start();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | ':' | '-');
    (!host.is_empty() && host.chars().all(fits)).then(|| host.to_owned())
}

#[cfg(test)]
mod tests;
