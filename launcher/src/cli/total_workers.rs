//! `--total-workers`: the workers over all nodes, divided among a fixed number of nodes.

use rankrun_contract::rank::{LocalWorldSize, NodeCount};

use super::error::{CliError, Expected, Origin, SettingError};
use super::resolve::refused;
use super::settings::{Setting, Settings};
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::RendezvousSpec;
use rankrun_core::spec::rendezvous::NodeRange;

const TOTAL: Expected = Expected::new("a number of workers from 1 to 4294967295", "8");

/// How many workers this node has of `--total-workers`, if that is given: as many as any other node, and the first nodes
/// one more where the number cannot be divided.
///
/// # Errors
/// Beside `--nproc-per-node`, without a fixed number of nodes, for fewer workers than nodes, and where the share depends
/// on a node rank that is not given.
pub(super) fn own_share(
    settings: &Settings<'_>,
    rendezvous: &RendezvousSpec,
) -> Result<Option<LocalWorldSize>, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.total_workers) else { return Ok(None) };
    if let Some(per_node) = settings.get(&settings.args.torchrun.nproc_per_node) {
        return Err(SettingError::exclusive(origin, &per_node.origin).into());
    }
    let NodeRange { min, max: nodes } = rendezvous.nodes();
    if min != nodes
        && let Some(range) = settings.get(&settings.args.torchrun.nnodes)
    {
        let problem =
            format!("and {} is `{}`, with which the number of nodes may change", range.origin, range.value);
        let hint = "give one number of nodes, or the workers of each node with `--nproc-per-node`";
        return Err(SettingError::of_value(origin, value, problem, hint).into());
    }
    let Ok(total) = u32::try_from(value) else { return Err(refused(origin, value, TOTAL)) };
    let (each, more) = (total / nodes.get(), total % nodes.get());
    let share = match more {
        0 => each,
        more => each + u32::from(node_rank(settings, rendezvous, &origin, total)? < more),
    };
    match LocalWorldSize::new(share) {
        Some(share) if each > 0 => Ok(Some(share)),
        _ if total == 0 => Err(refused(origin, value, TOTAL)),
        _ => Err(too_few(origin, total, nodes).into()),
    }
}

fn too_few(origin: Origin, total: u32, nodes: NodeCount) -> SettingError {
    let problem = format!("and the job has {nodes} nodes, each of which needs a worker");
    SettingError::of_value(origin, total, problem, format!("give {nodes} at least, or fewer `--nnodes`"))
}

/// Which of the nodes this one is.
fn node_rank(
    settings: &Settings<'_>,
    rendezvous: &RendezvousSpec,
    origin: &Origin,
    total: u32,
) -> Result<u32, SettingError> {
    let nodes = rendezvous.nodes().max;
    match rendezvous {
        RendezvousSpec::Standalone { .. } => Ok(0),
        RendezvousSpec::Static { node_rank, .. } => Ok(node_rank.0),
        RendezvousSpec::C10d { node_rank: Some(rank), .. } if rank.0 < nodes.get() => Ok(rank.0),
        RendezvousSpec::C10d { node_rank, .. } => {
            let problem = match node_rank {
                None => format!("which {nodes} nodes cannot share evenly, and this node's rank is not known"),
                Some(rank) => {
                    format!("which {nodes} nodes cannot share evenly, and this node has the rank {rank}")
                }
            };
            let hint = match settings.cli_flavor {
                CliFlavor::Rankrun => {
                    format!("give each node another `--node-rank`, from 0 to {}", nodes.get() - 1)
                }
                CliFlavor::Torchrun => format!("take a multiple of {nodes}, or a static rendezvous"),
            };
            Err(SettingError::of_value(origin.clone(), total, problem, hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::cli::{Command, interpret};
    use rankrun_core::facts::fake::FakeWorld;

    fn workers(line: &str, environment: &[(&str, &str)]) -> Result<u32, String> {
        let world = FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python3");
        let mut environment = environment.to_vec();
        environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
        let argv: Vec<OsString> = line.split(' ').chain(["x.py"]).map(OsString::from).collect();
        match interpret(&argv, &world.facts(&environment)) {
            Ok(Command::Launch(launch)) => Ok(launch.spec.workers.get()),
            Ok(other) => panic!("`{line}`: {other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn total_workers_are_divided_with_remainder_on_first_nodes() {
        for (line, count) in [
            ("rankrun --total-workers 5", 5),
            ("rankrun --total-workers 5 --nnodes 2 --node-rank 0", 3),
            ("rankrun --total-workers 5 --nnodes 2 --node-rank 1", 2),
            ("rankrun --total-workers 8 --nnodes 3 --node-rank 1", 3),
            ("rankrun --total-workers 8 --nnodes 3 --node-rank 2", 2),
            ("rankrun --total-workers 6 --nnodes 3 --rdzv-backend c10d", 2),
            ("rankrun --total-workers 5 --nnodes 2 --rdzv-backend c10d --node-rank 1", 2),
        ] {
            assert_eq!(workers(line, &[]), Ok(count), "{line}");
        }
        let variable = [("RANKRUN_TOTAL_WORKERS", "7")];
        assert_eq!(workers("torchrun --nnodes 2 --node-rank 1", &variable), Ok(3));
    }

    #[test]
    fn total_workers_that_cannot_be_divided_are_refused() {
        for (line, error) in [
            ("--nproc-per-node 2", "`--total-workers` and `--nproc-per-node` exclude each other"),
            ("--rdzv-backend c10d --nnodes 1:3", "`--total-workers` is `5`, and `--nnodes` is `1:3`"),
            ("--nnodes 6 --node-rank 5", "`--total-workers` is `5`, and the job has 6 nodes, each of which"),
            (
                "--nnodes 2 --rdzv-backend c10d",
                "which 2 nodes cannot share evenly, and this node's rank is not",
            ),
            ("--nnodes 2 --rdzv-backend c10d --node-rank 2", "and this node has the rank 2"),
            ("--total-workers 0", "`--total-workers` is `0`, which is not a number of workers from 1"),
            ("--total-workers -1", "`--total-workers` is `-1`, which is not a number of workers from 1"),
        ] {
            let message = workers(&format!("rankrun --total-workers 5 {line}"), &[]).unwrap_err();
            assert!(message.contains(error), "{line}: {message}");
        }
        let per_node = [("PET_NPROC_PER_NODE", "2")];
        let message = workers("rankrun --total-workers 5", &per_node).unwrap_err();
        assert_eq!(message, "`--total-workers` and `PET_NPROC_PER_NODE` exclude each other");
    }
}
