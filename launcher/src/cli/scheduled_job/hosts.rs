//! The hosts and the id of a batch job, as Slurm, LSF and PBS tell them to all processes of it: MPI launchers name no host.

use std::ffi::OsStr;
use std::path::Path;

use super::slurm::port;
use super::{Number, Setting, variable_value};
use crate::cli::nodelist;
use rankrun_core::facts::Facts;

/// A file of PBS has a line for each slot.
const MOST_BYTES: u64 = 1 << 24;
/// The file of PBS with the hosts.
pub(super) const NODE_FILE: &str = "PBS_NODEFILE";
const JOB_IDS: [&str; 3] = ["SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID"];

/// A batch job: its port and its run id.
pub(super) struct BatchJob {
    pub(super) port: Setting<u16>,
    pub(super) run_id: Setting<String>,
}

/// The batch job around this task, by the number that its id begins with.
pub(super) fn batch_job(facts: &Facts) -> Option<BatchJob> {
    let (name, id) = JOB_IDS.iter().find_map(|name| Some((*name, text(facts, name)?)))?;
    let digits = id.find(|letter: char| !letter.is_ascii_digit()).map_or(id, |end| &id[..end]);
    let number: u32 = digits.parse().ok()?;
    let run_id = variable_value(name, digits.to_owned());
    Some(BatchJob { port: variable_value(name, port(number, 0, 0)), run_id })
}

/// The hosts of a batch job that has as many as the tasks have nodes. LSF's own first host may be one from which tasks are
/// only launched.
pub(super) fn hosts_of_nodes(facts: &Facts, nodes: &Number) -> Option<Setting<Vec<String>>> {
    let wanted = usize::try_from(nodes.value).ok()?;
    let list = |name: &'static str, mut hosts: Vec<String>| match hosts.len().checked_sub(wanted)? {
        0 => Some(variable_value(name, hosts)),
        1 if name.starts_with("LSB") => Some(variable_value(name, hosts.split_off(1))),
        _ => None,
    };
    let of_slurm = || list("SLURM_JOB_NODELIST", nodelist::expand(text(facts, "SLURM_JOB_NODELIST")?)?);
    let of_lsf = || {
        let hosts = text(facts, "LSB_MCPU_HOSTS").map(|hosts| hosts.split_whitespace().step_by(2))?;
        list("LSB_MCPU_HOSTS", distinct(hosts))
    };
    let of_lsf_slots = || list("LSB_HOSTS", distinct(text(facts, "LSB_HOSTS")?.split_whitespace()));
    let of_pbs = || list(NODE_FILE, distinct(hosts_of_pbs(facts)?.iter().map(String::as_str)));
    of_slurm().or_else(of_lsf).or_else(of_lsf_slots).or_else(of_pbs)
}

/// The lines of the file, of which a host may have several.
pub(super) fn hosts_of_pbs(facts: &Facts) -> Option<Vec<String>> {
    let bytes = facts.world().read_file(Path::new(facts.filled_variable(NODE_FILE)?), MOST_BYTES).ok()?;
    Some(String::from_utf8(bytes).ok()?.split_whitespace().map(str::to_owned).collect())
}

/// Each host once, in the order in which they come first.
pub(super) fn distinct<'a>(hosts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut known = std::collections::BTreeSet::new();
    hosts.filter(|host| known.insert(*host)).map(str::to_owned).collect()
}

fn text<'a>(facts: &'a Facts, name: &str) -> Option<&'a str> {
    facts.filled_variable(name).and_then(OsStr::to_str).map(str::trim)
}
