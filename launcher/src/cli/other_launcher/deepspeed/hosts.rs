//! Which devices of which host take part (2.3 and 2.4 of docs/dev/launchers-contract.md): the host file, `--include`, `--exclude`, `--num_gpus` and
//! `--num_nodes`.

use std::path::Path;

use super::args::{DeepspeedArgs, option};
use crate::cli::device_request::MAX_WORKERS;
use crate::cli::error::{CliError, SettingError};
use crate::cli::exclude_node::{hostname, is_own_name};
use crate::cli::other_launcher::TargetMachine;
use rankrun_core::facts::Facts;

/// Where the real tool looks without `--hostfile`.
const DEFAULT_HOSTFILE: &str = "/job/hostfile";
const MAX_HOSTFILE: u64 = 1 << 20;
const LOCALHOST: &str = "localhost";

/// The devices that are asked for. Ids are numbers, UUIDs or names of MIG devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeviceFilter {
    All,
    /// `--num_gpus`
    First(u32),
    /// In this order.
    Include(Vec<String>),
    Exclude(Vec<String>),
}

/// A host that takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeepspeedHost {
    pub(super) name: String,
    /// The number in the host file; without one the machine decides.
    pub(super) slots: Option<u32>,
    pub(super) filter: DeviceFilter,
}

/// Where the workers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorkerHosts {
    /// On this machine alone.
    Here(DeepspeedHost),
    /// On this machine, and on others that a person starts (`--no_ssh`).
    NodeOf { host: DeepspeedHost, rank: usize, count: usize },
    /// On these hosts, which are started by ssh.
    BySsh(Vec<DeepspeedHost>),
}

/// The value of `--include` or `--exclude`: hosts and their ids; all ids where there are none.
struct HostFilter<'a> {
    option: &'static str,
    spec: &'a str,
    nodes: Vec<(&'a str, Vec<&'a str>)>,
}

/// The hosts that take part, in the order of the host file.
///
/// # Errors
/// The options contradict each other, the host file or a filter cannot be read, or nothing is left.
pub(super) fn find_hosts(
    machine: TargetMachine,
    args: &DeepspeedArgs,
    facts: &Facts,
    remarks: &mut Vec<String>,
) -> Result<WorkerHosts, CliError> {
    let filter = read_filter(args)?;
    let default = (machine == TargetMachine::This).then_some(DEFAULT_HOSTFILE);
    let named = args.hostfile.as_deref().map(Path::new);
    let path = named.or(default.map(Path::new)).filter(|path| facts.is_file(path));
    let mut hosts = match path {
        Some(path) => read_hostfile(path, facts)?,
        None => vec![DeepspeedHost { name: LOCALHOST.to_owned(), slots: None, filter: DeviceFilter::All }],
    };
    if let (None, Some(named)) = (path, named) {
        if machine == TargetMachine::Any {
            return Err(several_hosts(&format!(
                "the host file `{}` is not on this machine",
                named.display()
            )));
        }
        remarks.push(format!(
            "the host file `{}` does not exist: the job runs on this machine",
            named.display()
        ));
    }
    if let Some(count) = args.num_nodes.filter(|count| *count > 0) {
        if count > 1 && path.is_none() {
            return Err(several_hosts(&format!("`--num_nodes` is {count}")));
        }
        hosts.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    }
    match &filter {
        Some(filter) => filter.apply(&mut hosts, facts)?,
        None => {
            let first = args.first_devices()?.map_or(DeviceFilter::All, DeviceFilter::First);
            hosts.iter_mut().for_each(|host| host.filter = first.clone());
        }
    }
    place_workers(machine, args, hosts, facts)
}

fn place_workers(
    machine: TargetMachine,
    args: &DeepspeedArgs,
    hosts: Vec<DeepspeedHost>,
    facts: &Facts,
) -> Result<WorkerHosts, CliError> {
    let count = hosts.len();
    if args.no_ssh && count > 1 {
        let rank = args.node_rank.and_then(|rank| usize::try_from(rank).ok());
        let host = rank.and_then(|rank| Some((rank, hosts.get(rank)?.clone())));
        return match host {
            Some((rank, host)) => Ok(WorkerHosts::NodeOf { host, rank, count }),
            None => Err(CliError::refused(
                format!("`--no_ssh` starts one of {count} hosts, and `--node_rank` does not say which"),
                format!("add `--node_rank R`, from 0 to {}, another one on each host", count - 1),
            )),
        };
    }
    if let Some(rank) = args.node_rank.filter(|rank| *rank > 0) {
        return Err(several_hosts(&format!("`--node_rank` is {rank}")));
    }
    match (hosts.as_slice(), machine) {
        ([], _) => Err(nothing_left()),
        // Without a host file no name leads to another machine.
        ([host], _) if is_this_machine(&host.name, facts) && (!args.force_multi || host.slots.is_none()) => {
            Ok(WorkerHosts::Here(host.clone()))
        }
        ([host], TargetMachine::Any) if !is_this_machine(&host.name, facts) => {
            Err(several_hosts(&format!("the host `{}` is not this machine", host.name)))
        }
        (_, TargetMachine::Any) => Err(several_hosts(&format!("the host file has {count} hosts"))),
        (_, TargetMachine::This) => Ok(WorkerHosts::BySsh(hosts)),
    }
}

fn read_filter(args: &DeepspeedArgs) -> Result<Option<HostFilter<'_>>, CliError> {
    let given = [("include", &args.include), ("exclude", &args.exclude)].into_iter();
    let mut given =
        given.filter_map(|(name, spec)| Some((name, spec.as_deref().filter(|spec| !spec.is_empty())?)));
    let Some((name, spec)) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(SettingError::exclusive(option("include"), &option("exclude")).into());
    }
    let counts = [("num_gpus", args.device_count()), ("num_nodes", args.num_nodes)];
    match counts.into_iter().find(|(_, count)| count.is_some_and(|count| count >= 0)) {
        Some((count, _)) => Err(SettingError::exclusive(option(name), &option(count)).into()),
        None => HostFilter::parse(name, spec).map(Some),
    }
}

impl<'a> HostFilter<'a> {
    fn parse(option: &'static str, spec: &'a str) -> Result<Self, CliError> {
        let mut filter = Self { option, spec, nodes: Vec::new() };
        for node in spec.split('@') {
            let (name, ids) = match node.split_once(':') {
                Some((name, ids)) => (name, ids.split(',').map(str::trim).collect()),
                None => (node, Vec::new()),
            };
            // `-1` would be an exclusion for `--devices`.
            if let Some(bad) = ids.iter().find(|id| id.is_empty() || id.starts_with('-')) {
                let problem = format!("where `{bad}` names no device");
                return Err(filter.error(problem, "write the ids as in `localhost:0,2`"));
            }
            filter.add(name, ids);
        }
        Ok(filter)
    }

    /// Each id counts once.
    fn add(&mut self, name: &'a str, ids: Vec<&'a str>) {
        let at = self.nodes.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            self.nodes.push((name, Vec::new()));
            self.nodes.len() - 1
        });
        for id in ids {
            if !self.nodes[at].1.contains(&id) {
                self.nodes[at].1.push(id);
            }
        }
    }

    fn error(&self, problem: impl Into<String>, hint: impl Into<String>) -> CliError {
        SettingError::of_value(option(self.option), self.spec, problem.into(), hint.into()).into()
    }

    /// Leaves the hosts that take part, with their devices.
    fn apply(&self, hosts: &mut Vec<DeepspeedHost>, facts: &Facts) -> Result<(), CliError> {
        let means = |name: &str, host: &DeepspeedHost| {
            name == host.name || (is_this_machine(name, facts) && is_this_machine(&host.name, facts))
        };
        for (name, ids) in &self.nodes {
            let Some(host) = hosts.iter().find(|host| means(name, host)) else {
                let names: Vec<String> = hosts.iter().map(|host| format!("`{}`", host.name)).collect();
                let hint = format!("the hosts of this job are {}", names.join(", "));
                return Err(self.error(format!("and there is no host `{name}`"), hint));
            };
            let slots = host.slots.unwrap_or(u32::MAX);
            if let Some(id) = ids.iter().find(|id| id.parse().is_ok_and(|id: u32| id >= slots)) {
                let hint =
                    format!("its line in the host file has `slots={slots}`, so the ids end before that");
                return Err(self.error(format!("and `{name}` has no slot {id}"), hint));
            }
        }
        hosts.retain_mut(|host| {
            let named = self.nodes.iter().find(|(name, _)| means(name, host));
            let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
            host.filter = match (self.option, named.map(|(_, ids)| ids.as_slice())) {
                ("include", None) | ("exclude", Some([])) => return false,
                ("include", Some([])) | (_, None) => DeviceFilter::All,
                ("include", Some(named)) => DeviceFilter::Include(ids(named)),
                (_, Some(named)) => DeviceFilter::Exclude(ids(named)),
            };
            true
        });
        Ok(())
    }
}

fn read_hostfile(path: &Path, facts: &Facts) -> Result<Vec<DeepspeedHost>, CliError> {
    let shown = path.display();
    let text = facts.world().read_file(path, MAX_HOSTFILE).map_err(|error| {
        CliError::refused(format!("the host file `{shown}` cannot be read: {error}"), "make it readable")
    })?;
    let text = String::from_utf8_lossy(&text);
    let refused = |fact: String| {
        CliError::refused(
            format!("the host file `{shown}` {fact}"),
            "write a line `NAME slots=N` for each host",
        )
    };
    let mut hosts: Vec<DeepspeedHost> = Vec::new();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (name, slots) = parse_host(line).ok_or_else(|| refused(format!("has the line `{line}`")))?;
        if hosts.iter().any(|host| host.name == name) {
            return Err(refused(format!("names the host `{name}` twice")));
        }
        if i128::from(slots) > MAX_WORKERS {
            return Err(refused(format!(
                "has the line `{line}`, and a launch has at most {MAX_WORKERS} workers"
            )));
        }
        hosts.push(DeepspeedHost { name: name.to_owned(), slots: Some(slots), filter: DeviceFilter::All });
    }
    if hosts.is_empty() { Err(refused("names no host".to_owned())) } else { Ok(hosts) }
}

/// `NAME slots=N`, and anything behind the number.
fn parse_host(line: &str) -> Option<(&str, u32)> {
    let (name, rest) = line.split_once(char::is_whitespace)?;
    let number = rest.trim_start().strip_prefix("slots=")?;
    let end = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
    Some((name, number[..end].parse().ok()?))
}

fn is_this_machine(name: &str, facts: &Facts) -> bool {
    if name == LOCALHOST || name == "127.0.0.1" {
        return true;
    }
    is_own_name(name, &hostname(facts))
}

fn several_hosts(fact: &str) -> CliError {
    CliError::refused(
        format!("{fact}, and the line has the workers of one host"),
        "`rankrun deepspeed --hostfile FILE` starts several by ssh; or start one launcher on each node: `rankrun --nnodes N \
         --node-rank R --master-addr HOST --master-port PORT …`",
    )
}

pub(super) fn nothing_left() -> CliError {
    CliError::refused("`--exclude` leaves no device for a worker", "leave out fewer devices")
}
