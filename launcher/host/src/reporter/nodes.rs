//! Status lines about other nodes: rendezvous, lost nodes, failures elsewhere. Pure.

use std::time::Duration;

use rankrun_contract::rank::NodeCount;

use crate::reporter::summary::worker_name_on_node;
use rankrun_core::plain::plain;
use rankrun_core::rendezvous::note::RuleNote;
use rankrun_core::rendezvous::{
    FailureNote, LossRole, LostNode, MembershipChange, NodeName, PeerLoss, RendezvousEnd, Round, WaitReason,
    WaitStatus, WorkerFailure,
};

/// Names of more nodes than this are left out.
const NAMES_SHOWN: usize = 8;

/// The change of another node, as one line.
#[must_use]
pub(crate) fn membership_change_text(change: &MembershipChange) -> String {
    match change {
        MembershipChange::Failed(failed) => {
            format!("{} failed: {}{}", worker(failed), plain(&failed.ended), peer_loss_text(failed.lost_peer))
        }
        MembershipChange::Lost(LostNode { node, role }) => plain(&match role {
            LossRole::EndsRound => format!("{node} is lost: it sends no heartbeat"),
            LossRole::FirstFailure => format!("{node} is lost, and failed first"),
            LossRole::CausesFailureHere => {
                format!("{node} was lost: the failure is put down to that and uses no restart")
            }
        }),
        MembershipChange::Left { node, why } => plain(&format!("{node} has left: {why}")),
        MembershipChange::NodeWaits { node } => plain(&format!("{node} wants to take part")),
        MembershipChange::CutOff { .. } => {
            "the rendezvous store does not answer: the others take this node for lost".to_owned()
        }
        MembershipChange::StoodStill => {
            "this launcher stood still for longer than its lease (SIGSTOP, a debugger, swapping): its workers \
                are killed, since the other nodes take this node for lost"
                .to_owned()
        }
        MembershipChange::Removed => {
            "the others have gone on without this node, which was silent for too long".to_owned()
        }
    }
}

/// How the job has ended elsewhere, as one line.
#[must_use]
pub(crate) fn remote_end_text(ending: &RendezvousEnd) -> String {
    match ending {
        RendezvousEnd::Excluded { others } => format!(
            "this node leaves the job, since its workers failed first too often (`--exclude-node-after`); {} can go on",
            nodes_here(*others)
        ),
        RendezvousEnd::NotNeeded => "the job has succeeded, and needs nothing more of this node".to_owned(),
        RendezvousEnd::Closed { failure: Some(note) } => match note {
            FailureNote::NodeLost { node } => plain(&format!("the job has ended since {node} was lost")),
            FailureNote::NodeLeft { node, why } | FailureNote::LauncherFailed { node, why } => {
                node_end_text(node, why)
            }
            FailureNote::Worker(worker) => plain(&format!("{} has ended the job", worker.node)),
        },
        RendezvousEnd::Closed { failure: None } => "another node has ended the job".to_owned(),
        RendezvousEnd::ByRule { rule, failure } => rule_text(rule, failure.as_ref()),
        RendezvousEnd::Failed { .. } => "the rendezvous has failed".to_owned(),
    }
}

fn rule_text(rule: &RuleNote, failure: Option<&FailureNote>) -> String {
    let what = if rule.is_success() { "is done" } else { "has failed" };
    let where_from = match failure {
        None => " of another node".to_owned(),
        Some(FailureNote::Worker(failed)) => {
            format!(" on {}: rank {} ended with {}", failed.node, failed.rank, failed.ended)
        }
        Some(note) => format!(" on {}", note.node()),
    };
    plain(&format!("the job {what}, by the rule `{}`{where_from}", rule.text))
}

/// A further round, and the number of this node's workers in it.
#[must_use]
pub(crate) fn next_round_text(round: &Round, workers: u32) -> String {
    let first = round.base_rank.0;
    let ranks = match workers {
        1 => format!("rank {first}"),
        _ => format!("ranks {first}-{}", first.saturating_add(workers.saturating_sub(1))),
    };
    format!(
        "going on with {} and {} worker{}; this is {}, with {ranks}",
        nodes(round.nodes),
        round.world_size,
        if round.world_size.get() == 1 { "" } else { "s" },
        plain(&round.own_name().to_string())
    )
}

/// One line that lists the nodes present and the nodes missing.
#[must_use]
pub(crate) fn waiting(waiting: &WaitStatus) -> String {
    let WaitStatus { min, max, .. } = *waiting;
    let count = waiting.here.len();
    let is_or_are = if count == 1 { "is" } else { "are" };
    let here = format!("{is_or_are} here: {}", names(&waiting.here));
    let missing = match waiting.missing.len() {
        0 => String::new(),
        1 => format!("; {} is missing", names(&waiting.missing)),
        _ => format!("; {} are missing", names(&waiting.missing)),
    };
    let remaining = whole_seconds(waiting.left);
    match &waiting.awaited {
        WaitReason::Place => format!(
            "this node is a spare: the job runs on {}, and it takes the place of the first that is lost",
            nodes_here(count)
        ),
        WaitReason::Stops { nodes } => {
            let possessive = if nodes.len() == 1 { "its" } else { "their" };
            let of_all = if min == max { format!(" of {max}") } else { String::new() };
            format!(
                "waiting for {} to stop {possessive} workers; {count}{of_all} {here}{missing}",
                names(nodes)
            )
        }
        WaitReason::Ranks => {
            format!(
                "waiting for the other nodes to tell how many workers they have; {} {here}; {remaining} left",
                nodes_here(count)
            )
        }
        WaitReason::More { starts_in } => format!(
            "waiting for more nodes: {count} {here}{missing}; {min} {} enough and {max} the most; \
             the job starts with these nodes in {}",
            if min == NodeCount::ONE { "is" } else { "are" },
            whole_seconds(*starts_in)
        ),
        WaitReason::Enough if min == max => {
            format!("waiting for nodes: {count} of {max} {here}{missing}; {remaining} left")
        }
        WaitReason::Enough => {
            format!("waiting for nodes: {count} {here}{missing}; at least {min} are needed; {remaining} left")
        }
    }
}

/// What a node waits for before its first start, for the line about a signal that ends the wait.
#[must_use]
pub(crate) fn awaited(waiting: &WaitStatus) -> String {
    match &waiting.awaited {
        WaitReason::Enough => {
            let missing =
                usize::try_from(waiting.min.get()).map_or(0, |min| min.saturating_sub(waiting.here.len()));
            format!("{missing} of {}", nodes(waiting.min))
        }
        WaitReason::More { .. } => "more nodes".to_owned(),
        WaitReason::Place => "the place of a lost node".to_owned(),
        WaitReason::Stops { nodes } => format!("{} to stop", names(nodes)),
        WaitReason::Ranks => "the other nodes to tell how many workers they have".to_owned(),
    }
}

fn whole_seconds(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(time.as_secs()))
}

/// A note of the rendezvous that is shown by default.
#[must_use]
pub(crate) fn note(text: &str) -> String {
    plain(text)
}

/// The first failure if it is on another node, as every node of the job shows it.
#[must_use]
pub(crate) fn first_cause(note: &FailureNote) -> String {
    let failed = match note {
        FailureNote::NodeLost { node } => return plain(&format!("{node} was lost first")) + "\n",
        FailureNote::NodeLeft { node, why } | FailureNote::LauncherFailed { node, why } => {
            return node_end_text(node, why) + "\n";
        }
        FailureNote::Worker(failed) => failed,
    };
    let mut text = first_failure(failed) + "\n";
    text.push_str(&format!(
        "  worker    rank {}, local rank {}, pid {}\n",
        failed.rank, failed.local_rank, failed.pid
    ));
    text.push_str(&format!("  node      {}\n", plain(&failed.node.as_row())));
    if let Some(message) = &failed.message {
        text.push_str(&format!("  reported  {}\n", plain(message)));
    }
    if !failed.last_lines.is_empty() {
        text.push_str("  its last lines:\n");
    }
    for line in &failed.last_lines {
        text.push_str(format!("    | {}", plain(line)).trim_end());
        text.push('\n');
    }
    text
}

/// Which worker failed first and how it ended, as one line.
#[must_use]
pub(crate) fn first_failure(failed: &WorkerFailure) -> String {
    format!("{} failed first: {}", worker(failed), plain(&failed.ended))
}

/// Where the rest of the story is.
#[must_use]
pub(crate) fn hint(note: &FailureNote) -> String {
    plain(&match note {
        FailureNote::NodeLost { node } => {
            format!("see whether {node} is up, and what its launcher said last")
        }
        FailureNote::NodeLeft { node, .. } => {
            format!("{node} hosts the rendezvous store, and no node goes on without it")
        }
        FailureNote::LauncherFailed { node, .. } | FailureNote::Worker(WorkerFailure { node, .. }) => {
            format!("the launcher on {node} says more")
        }
    })
}

/// The line about a node that has ended the job.
fn node_end_text(node: &NodeName, why: &str) -> String {
    plain(&format!("{node} has ended the job: {why}"))
}

/// The peer that a worker lost before it failed; follows its exit.
fn peer_loss_text(peer: Option<PeerLoss>) -> String {
    match peer {
        Some(PeerLoss::Rank(rank)) => format!(" (it lost rank {rank})"),
        Some(PeerLoss::Unnamed) => " (it lost a peer)".to_owned(),
        None => String::new(),
    }
}

/// The line on a node after all its workers exited with 0 and a worker of another node lost a peer.
#[must_use]
pub(crate) fn finished_before(failed: &WorkerFailure) -> String {
    format!(
        "probably an early end: all workers of this node had exited with 0, and {} reports a lost peer",
        worker(failed)
    )
}

fn worker(failed: &WorkerFailure) -> String {
    worker_name_on_node(failed.rank, failed.local_rank, &failed.node)
}

fn nodes(count: NodeCount) -> String {
    nodes_here(count.get() as usize)
}

fn nodes_here(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

fn names(names: &[NodeName]) -> String {
    let mut shown: Vec<String> =
        names.iter().take(NAMES_SHOWN).map(|name| plain(&name.to_string())).collect();
    if names.len() > NAMES_SHOWN {
        shown.push(format!("{} more", names.len() - NAMES_SHOWN));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::env::Master;
    use rankrun_contract::rank::{LocalRank, NodeRank, Rank, WorldSize};
    use rankrun_core::rendezvous::Member;

    fn count(nodes: u32) -> NodeCount {
        NodeCount::new(nodes).unwrap()
    }

    /// With an address each: `th2` has 10.0.0.2.
    fn node_names(names: &[&str]) -> Vec<NodeName> {
        let name =
            |name: &&str| NodeName { addr: Some(name.replace("th", "10.0.0.")), ..NodeName::of_host(*name) };
        names.iter().map(name).collect()
    }

    fn note() -> FailureNote {
        FailureNote::Worker(WorkerFailure {
            node: ranked(1, node_names(&["th2"]).remove(0)),
            rank: Rank(5),
            local_rank: LocalRank(1),
            pid: 77,
            ended: "exit code 7".to_owned(),
            message: Some("ValueError: \x1b[31mbad batch".to_owned()),
            last_lines: vec!["step 9".to_owned(), "\x1b[31mbad  ".to_owned()],
            lost_peer: None,
        })
    }

    fn ranked(rank: u32, node: NodeName) -> NodeName {
        NodeName { rank: Some(NodeRank(rank)), ..node }
    }

    #[test]
    fn wait_message_names_present_and_missing_nodes_and_time() {
        let mut status = WaitStatus {
            here: node_names(&["th1", "th2"]),
            missing: node_names(&["th3"]),
            min: count(3),
            max: count(3),
            left: Duration::from_millis(590_400),
            awaited: WaitReason::Enough,
        };
        let expected = "waiting for nodes: 2 of 3 are here: th1 (10.0.0.1), th2 (10.0.0.2); th3 (10.0.0.3) is missing; 9m 50s left";
        assert_eq!(waiting(&status), expected);
        status.here = node_names(&["th1"]);
        (status.missing, status.max) = (Vec::new(), count(5));
        let expected = "waiting for nodes: 1 is here: th1 (10.0.0.1); at least 3 are needed; 9m 50s left";
        assert_eq!(waiting(&status), expected);
        status.here = node_names(&["th1", "th2", "th3"]);
        status.awaited = WaitReason::More { starts_in: Duration::from_millis(25_900) };
        let expected = "waiting for more nodes: 3 are here: th1 (10.0.0.1), th2 (10.0.0.2), th3 (10.0.0.3); 3 are enough and 5 the most; \
                     the job starts with these nodes in 25s";
        assert_eq!(waiting(&status), expected);
        status.awaited = WaitReason::Ranks;
        let expected = "waiting for the other nodes to tell how many workers they have; 3 nodes are here: \
                     th1 (10.0.0.1), th2 (10.0.0.2), th3 (10.0.0.3); 9m 50s left";
        assert_eq!(waiting(&status), expected);
        status.awaited = WaitReason::Enough;
        status.here = (0..200).map(|at| NodeName::of_host(format!("n{at}"))).collect();
        assert!(waiting(&status).contains("n7, 192 more"), "{}", waiting(&status));
        status.awaited = WaitReason::Place;
        assert!(waiting(&status).starts_with("this node is a spare: the job runs on 200 nodes, and"));
    }

    #[test]
    fn wait_message_names_nodes_stopping_workers() {
        let mut status = WaitStatus {
            here: node_names(&["th1", "th3"]),
            missing: Vec::new(),
            min: count(3),
            max: count(3),
            left: Duration::from_secs(9),
            awaited: WaitReason::Stops { nodes: node_names(&["th2"]) },
        };
        assert_eq!(
            waiting(&status),
            "waiting for th2 (10.0.0.2) to stop its workers; 2 of 3 are here: th1 (10.0.0.1), th3 (10.0.0.3)"
        );
        (status.here, status.missing, status.max) = (node_names(&["th3"]), node_names(&["th4"]), count(4));
        status.awaited = WaitReason::Stops { nodes: node_names(&["th1", "th2"]) };
        let expected = "waiting for th1 (10.0.0.1), th2 (10.0.0.2) to stop their workers; \
                     1 is here: th3 (10.0.0.3); th4 (10.0.0.4) is missing";
        assert_eq!(waiting(&status), expected);
    }

    #[test]
    fn first_cause_is_same_on_all_nodes_and_escaped() {
        assert_eq!(
            first_cause(&note()),
            "\
rank 5 (local rank 1) on node 1 (th2, 10.0.0.2) failed first: exit code 7
  worker    rank 5, local rank 1, pid 77
  node      1, th2, 10.0.0.2
  reported  ValueError: bad batch
  its last lines:
    | step 9
    | bad
"
        );
        assert_eq!(
            membership_change_text(&MembershipChange::from(note())),
            "rank 5 (local rank 1) on node 1 (th2, 10.0.0.2) failed: exit code 7"
        );
        let lost = FailureNote::NodeLost { node: ranked(2, node_names(&["th3"]).remove(0)) };
        assert_eq!(first_cause(&lost), "node 2 (th3, 10.0.0.3) was lost first\n");
        assert_eq!(
            membership_change_text(&MembershipChange::from(lost)),
            "node 2 (th3, 10.0.0.3) is lost, and failed first"
        );
        let why = "it was told to stop by SIGTERM".to_owned();
        let host = FailureNote::NodeLeft { node: ranked(0, NodeName::of_host("th\x1b[2J1")), why };
        let expected = "node 0 (th1) has ended the job: it was told to stop by SIGTERM";
        assert_eq!(first_cause(&host), format!("{expected}\n"));
        assert_eq!(remote_end_text(&RendezvousEnd::Closed { failure: Some(host.clone()) }), expected);
        assert_eq!(hint(&host), "node 0 (th1) hosts the rendezvous store, and no node goes on without it");
        let failed = FailureNote::LauncherFailed {
            node: ranked(1, NodeName::of_host("th2")),
            why: "cannot".to_owned(),
        };
        assert_eq!(first_cause(&failed), "node 1 (th2) has ended the job: cannot\n");
        assert_eq!(hint(&failed), "the launcher on node 1 (th2) says more");
        assert_eq!(hint(&note()), "the launcher on node 1 (th2, 10.0.0.2) says more", "it may keep no log");
        let left =
            MembershipChange::Left { node: NodeName::of_host("th\x1b[2J3"), why: "SIGTERM".to_owned() };
        assert_eq!(membership_change_text(&left), "th3 has left: SIGTERM");
    }

    #[test]
    fn lost_node_line_says_what_the_loss_means() {
        let line = |role| {
            let node = ranked(1, NodeName::of_host("th\x1b[2J2"));
            membership_change_text(&MembershipChange::Lost(LostNode { node, role }))
        };
        assert_eq!(line(LossRole::EndsRound), "node 1 (th2) is lost: it sends no heartbeat");
        assert_eq!(line(LossRole::FirstFailure), "node 1 (th2) is lost, and failed first");
        assert_eq!(
            line(LossRole::CausesFailureHere),
            "node 1 (th2) was lost: the failure is put down to that and uses no restart"
        );
    }

    #[test]
    fn next_round_message_shows_nodes_and_ranks() {
        let master = Master { addr: "th1".to_owned(), port: 1, uses_agent_store: true };
        let round = Round {
            number: 2,
            node_rank: NodeRank(1),
            nodes: count(3),
            base_rank: Rank(4),
            world_size: WorldSize::new(12).unwrap(),
            base_role_rank: Rank(4),
            role_world_size: WorldSize::new(12).unwrap(),
            master,
            members: Vec::new(),
            interface: None,
        };
        let expected = "going on with 3 nodes and 12 workers; this is node 1, with ranks 4-7";
        assert_eq!(next_round_text(&round, 4), expected);
        let name = NodeName { rank: Some(NodeRank(1)), ..node_names(&["th2"]).remove(0) };
        let members = vec![Member { node_rank: NodeRank(1), name, workers: None }];
        let expected = "going on with 3 nodes and 12 workers; this is node 1 (th2, 10.0.0.2), with ranks 4-7";
        assert_eq!(next_round_text(&Round { members, ..round }, 4), expected);
    }
}
