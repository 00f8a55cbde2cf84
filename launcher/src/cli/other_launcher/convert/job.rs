//! What a launcher that starts any program would start: how many processes, on which nodes. Pure.

use super::program::entrypoint;
use super::{Conversion, Environment};
use crate::cli::error::CliError;

/// Stands for the name of a node that the line does not say.
pub(super) const HEAD_NODE: &str = "$HEAD_NODE";
/// Stands for a number of nodes that the line does not say.
pub(super) const NODES: &str = "$NODES";
/// The number of nodes of Slurm's allocation.
pub(super) const ALLOCATED_NODES: &str = "$SLURM_NNODES";
/// Stands for the place of a node among the nodes.
pub(super) const NODE_RANK: &str = "$NODE_RANK";
/// The port of `--rdzv-endpoint`, c10d's own.
const PORT: u16 = 29400;

/// How many workers there are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum ProcessCount {
    /// The line does not say.
    #[default]
    Unsaid,
    PerNode(String),
    /// Over all nodes, where they are not equally many on each.
    Total(String),
}

/// The nodes of a job of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeveralNodes {
    /// A number, or `MIN:MAX`.
    pub(super) count: String,
    /// Their names, where the line has them.
    pub(super) hosts: Vec<String>,
}

/// A host and its number of slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) slots: Option<u32>,
}

/// What a launcher would start.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// The launcher's name.
    pub(super) launcher: &'static str,
    pub(super) workers: ProcessCount,
    /// Nothing for one node.
    pub(super) nodes: Option<SeveralNodes>,
    /// Further options of rankrun.
    pub(super) options: Vec<String>,
    pub(super) environment: Environment,
    pub(super) notes: Vec<String>,
    /// The program and its arguments.
    pub(super) program: Vec<String>,
}

/// The numbers that a line has.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) total: Option<String>,
    pub(super) per_node: Option<String>,
    pub(super) nodes: Option<String>,
    pub(super) hosts: Vec<Host>,
    /// One process after the other goes to the next host.
    pub(super) is_by_node: bool,
}

impl Job {
    pub(super) fn convert(self) -> Result<Conversion, CliError> {
        let Self { launcher, workers, nodes, options, mut environment, mut notes, program } = self;
        let is_uneven = matches!(workers, ProcessCount::Total(_));
        let mut words = match workers {
            ProcessCount::Unsaid => Vec::new(),
            ProcessCount::PerNode(count) | ProcessCount::Total(count) => {
                check_number(&count, launcher, "processes")?;
                let option = if is_uneven { "--total-workers" } else { "--nproc-per-node" };
                vec![option.to_owned(), count]
            }
        };
        if let Some(SeveralNodes { count, hosts }) = nodes {
            // A variable may have a `:` of its own: `${N:-2}`.
            let is_range = !count.contains('$');
            count
                .split(|letter| is_range && letter == ':')
                .try_for_each(|count| check_number(count, launcher, "nodes"))?;
            let head = hosts.first().map_or(HEAD_NODE, String::as_str);
            let endpoint = format!("{head}:{PORT}");
            words.extend(
                ["--nnodes", &count, "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]
                    .map(str::to_owned),
            );
            notes.push(if hosts.is_empty() {
                "run this on each node, with HEAD_NODE set to the name of one of them, the same on all"
                    .to_owned()
            } else {
                format!("run this on each node: {}", hosts.join(", "))
            });
            if is_uneven {
                words.extend(["--node-rank", NODE_RANK].map(str::to_owned));
                notes.push(
                    "set NODE_RANK on each node: 0 on the first one, 1 on the next, and so on".to_owned(),
                );
            }
        }
        words.extend(options);
        words.extend(entrypoint(launcher, &program, &mut environment)?);
        Ok(Conversion { environment, words, notes, ..Conversion::default() })
    }

    /// The one note for launchers of MPI programs.
    pub(super) fn note_mpi(&mut self) {
        self.notes.push(format!(
            "workers get RANK, LOCAL_RANK and WORLD_SIZE: a program that reads OMPI_COMM_WORLD_RANK, PMI_RANK or \
             SLURM_PROCID, or calls MPI_Init or hvd.init(), still needs {}",
            self.launcher
        ));
    }

    /// The launcher fills one host after the other, and rankrun spreads the workers evenly.
    fn note_other_split(&mut self, total: u32, hosts: &[Host]) {
        let mut free = total;
        let filled = hosts.iter().map(|host| {
            let share = free.min(host.slots.unwrap_or(0));
            free -= share;
            share
        });
        let filled: Vec<u32> = filled.collect();
        let count = hosts.len() as u32;
        let even = (0..count).map(|rank| total / count + u32::from(rank < total % count));
        if free > 0 || even.eq(filled.iter().copied()) {
            return;
        }
        let shares = hosts.iter().zip(filled).map(|(host, share)| format!("{share} on {}", host.name));
        self.notes.push(format!(
            "{} starts {}, and this line spreads the workers evenly: give each node its own number as \
             `--nproc-per-node` for the same",
            self.launcher,
            shares.collect::<Vec<_>>().join(", ")
        ));
    }

    /// Decides how many workers there are on how many nodes.
    pub(super) fn place(&mut self, counts: Counts) {
        let Counts { total, per_node, nodes, mut hosts, is_by_node } = counts;
        let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<u32>().ok());
        if let (Some(total), None) = (number(&total), &per_node) {
            hosts.truncate(total as usize);
            let mut free = total;
            let is_used = |host: &Host| {
                let is_used = free > 0 || is_by_node;
                free = free.saturating_sub(host.slots.unwrap_or(0));
                is_used
            };
            hosts = hosts.into_iter().take_while(is_used).collect();
        }
        let known = (!hosts.is_empty()).then_some(hosts.len() as u32);
        let needed = number(&total).zip(number(&per_node).filter(|count| *count > 0));
        let count = match (nodes, needed, known) {
            // A node without a process takes no part.
            (Some(nodes), _, _) => match number(&total).filter(|total| *total > 0) {
                Some(total) if nodes.parse().is_ok_and(|nodes| total < nodes) => total.to_string(),
                _ => nodes,
            },
            (None, Some((total, per_node)), _) => total.div_ceil(per_node).to_string(),
            (None, None, known) => known.unwrap_or(1).to_string(),
        };
        let slots: Vec<u32> = hosts.iter().filter_map(|host| host.slots).collect();
        let is_even = slots.windows(2).all(|pair| pair[0] == pair[1]);
        self.workers = match (per_node, &total, count.parse::<u32>().ok().filter(|count| *count > 0)) {
            (Some(per_node), _, _) => ProcessCount::PerNode(per_node),
            (None, Some(text), Some(count)) => match number(&total) {
                Some(total) if total % count == 0 => ProcessCount::PerNode((total / count).to_string()),
                None if count == 1 => ProcessCount::PerNode(text.clone()),
                _ => ProcessCount::Total(text.clone()),
            },
            (None, Some(text), None) => ProcessCount::Total(text.clone()),
            (None, None, _) if slots.is_empty() => ProcessCount::Unsaid,
            (None, None, _) if is_even => ProcessCount::PerNode(slots[0].to_string()),
            (None, None, _) => ProcessCount::Total(slots.iter().sum::<u32>().to_string()),
        };
        let total = number(&total).unwrap_or_else(|| slots.iter().sum());
        if !is_by_node && slots.len() == hosts.len() && needed.is_none() {
            self.note_other_split(total, &hosts);
        }
        if count != "1" {
            let hosts = hosts.into_iter().map(|host| host.name).collect();
            self.nodes = Some(SeveralNodes { count, hosts });
        }
    }
}

/// A number from 1, or a variable.
fn check_number(text: &str, launcher: &str, what: &str) -> Result<(), CliError> {
    if text.contains('$') || text.parse::<u32>().is_ok_and(|number| number > 0) {
        return Ok(());
    }
    let message = format!("`{text}` in the line of `{launcher}` is not a number of {what}");
    Err(CliError::refused(message, "give a number from 1"))
}

/// `h1:4,h2:4`; a host that is named again has one more slot.
pub(super) fn hosts_of_list(list: &str) -> Vec<Host> {
    merged(list.split(',').filter(|item| !item.is_empty()).map(|item| match item.rsplit_once(':') {
        Some((name, slots)) if slots.bytes().all(|byte| byte.is_ascii_digit()) => {
            Host { name: name.to_owned(), slots: slots.parse().ok() }
        }
        _ => Host { name: item.to_owned(), slots: None },
    }))
}

/// A file with a host on each line, as in `h1 slots=4` or `h1:4`.
pub(super) fn hosts_of_file(text: &str) -> Vec<Host> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let host = hosts_of_list(words.next()?).into_iter().next()?;
        let slots = words.find_map(|word| word.strip_prefix("slots=")?.parse().ok());
        Some(Host { slots: slots.or(host.slots), ..host })
    });
    merged(lines)
}

fn merged(hosts: impl Iterator<Item = Host>) -> Vec<Host> {
    let mut merged: Vec<Host> = Vec::new();
    for host in hosts {
        match merged.iter_mut().find(|known| known.name == host.name) {
            Some(known) => known.slots = Some(known.slots.unwrap_or(1) + host.slots.unwrap_or(1)),
            None => merged.push(host),
        }
    }
    merged
}
