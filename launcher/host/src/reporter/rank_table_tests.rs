use rankrun_contract::rank::{LocalRank, NodeRank};

use super::*;
use rankrun_core::posix::{Exit, Pid, Signal};

const SIGINT: StopReason = StopReason::Signal(Signal::SIGINT);

fn row(local_rank: u32, joined: JoinState, cpu: u64, text: &str) -> RankRow {
    let output = match text {
        "" => LastOutput::Empty,
        text => LastOutput::Line { text: text.to_owned(), age: Duration::from_millis(12_340) },
    };
    RankRow {
        local_rank: LocalRank(local_rank),
        pid: Some(Pid::from_raw(4000 + local_rank.cast_signed())),
        process: ProcessState::Alive(RunState::Waiting),
        joined,
        cpu_time: Some(Duration::from_millis(cpu)),
        output,
    }
}

fn text(reason: StopReason, rows: Vec<RankRow>, columns: Option<usize>) -> String {
    let setting = TableSetting { base_rank: Rank(0), node: None, columns };
    render(&RankTable { reason, rows }, &setting)
}

#[test]
fn table_names_missing_rank_and_groups_similar_ranks() {
    let mut rows: Vec<_> = (0..3).map(|rank| row(rank, JoinState::Joined, 3100, "waiting")).collect();
    rows.push(row(3, JoinState::NotJoined, 20, ""));
    rows[3].process = ProcessState::Alive(RunState::Running);
    let expected = "\
rank 3 has not joined the store; the ranks when SIGINT came:
  rank  pid        process       joined  CPU time  last output
  0-2   4000-4002  alive, waits  yes     3.10 s    12 s before: waiting
  3     4003       alive, runs   no      0.02 s    none
  hint: while it hangs, `rankrun stacks` shows where each rank waits";
    assert_eq!(text(SIGINT, rows, None), expected);
}

#[test]
fn table_of_node_has_global_ranks_and_unknown_join_state() {
    let mut rows = vec![row(0, JoinState::Unknown, 500, "a"), row(1, JoinState::Unknown, 70_000, "b")];
    rows.push(row(2, JoinState::Unknown, 0, ""));
    (rows[2].process, rows[2].cpu_time) = (ProcessState::Ended(Exit::Code(0)), None);
    rows[0].output = LastOutput::Unavailable;
    let node = Some(NodeName { rank: Some(NodeRank(1)), host: Some("th2".to_owned()), addr: None });
    let setting = TableSetting { base_rank: Rank(8), node, columns: None };
    let reason = StopReason::Signal(Signal::SIGTERM);
    let expected = "\
it is not known whether ranks 8, 9 joined the store; the ranks of node 1 (th2) when SIGTERM came:
  rank  pid   process       joined   CPU time  last output
  8     4000  alive, waits  unknown  0.50 s    not seen
  9     4001  alive, waits  unknown  70 s      12 s before: b
  10    4002  exit code 0   -        -         none
  hint: these ranks have no connection to the store now; while it hangs, \
`rankrun stacks` shows where each rank waits";
    assert_eq!(render(&RankTable { reason, rows }, &setting), expected);
}

#[test]
fn table_at_time_limit_shows_joined_ranks() {
    let rows =
        vec![row(0, JoinState::Joined, 9_000_000, "step 7"), row(1, JoinState::Joined, 60_000, "step 7")];
    let shown = text(StopReason::TimeLimit, rows, None);
    let begins = "all ranks that run have joined the store; the ranks when the time limit was over:\n";
    assert!(shown.starts_with(begins), "{shown}");
    assert!(
        shown.contains("\n  0     4000  alive, waits  yes     2 h       12 s before: step 7\n"),
        "{shown}"
    );
    assert!(
        shown.contains("\n  1     4001  alive, waits  yes     60 s      12 s before: step 7\n"),
        "{shown}"
    );
    assert!(shown.contains("  hint: a rank that hangs has old output"), "{shown}");
}

#[test]
fn many_ranks_with_different_output_share_few_rows() {
    let line = |rank: u32| format!("loading shard {rank}");
    let mut rows: Vec<_> = (0..512).map(|rank| row(rank, JoinState::Joined, 3000, &line(rank))).collect();
    rows[77].joined = JoinState::NotJoined;
    let shown = text(SIGINT, rows, None);
    assert_eq!(shown.lines().count(), 5, "{shown}");
    assert!(shown.contains("\n  0-76, 78-511  4000-4076, 4078-4511  alive, waits  yes "), "{shown}");
    assert!(shown.contains("12 s before, rank 0: loading shard 0\n"), "{shown}");
    assert!(shown.contains("\n  77            4077                  alive, waits  no  "), "{shown}");
    assert!(shown.contains("12 s before: loading shard 77\n"), "{shown}");
}

#[test]
fn hint_explains_state_of_missing_rank() {
    for (state, hint) in [
        (
            ProcessState::Alive(RunState::Uninterruptible),
            "rank 1 is stuck in the kernel: a device or a file server",
        ),
        (ProcessState::Alive(RunState::Stopped), "rank 1 is stopped, by SIGSTOP or by a debugger"),
        (ProcessState::ExternalNotStarted, "rank 1 is left out and not started yet"),
        (ProcessState::NotStarted, "rank 1 is not started yet: the launcher waits for a file system"),
    ] {
        let mut rows = vec![row(0, JoinState::Joined, 0, ""), row(1, JoinState::NotJoined, 0, "")];
        rows[1].process = state;
        rows[1].pid = rows[1].pid.filter(|_| matches!(state, ProcessState::Alive(_)));
        let shown = text(SIGINT, rows, None);
        assert!(shown.contains(&format!("\n  hint: {hint}")), "{shown}");
    }
    let rows = vec![row(0, JoinState::NotJoined, 0, "")];
    assert!(text(SIGINT, rows, None).ends_with("\n  hint: a program without torch.distributed never joins"));
}

#[test]
fn table_row_fits_terminal_and_is_escaped() {
    let hostile = format!("\x1b[2J\t{}\u{202e}{}", "漢".repeat(30), "x".repeat(4000));
    let rows = vec![row(0, JoinState::NotJoined, 0, &hostile), row(1, JoinState::NotJoined, 0, "short")];
    for (columns, longest) in [(Some(100), 99), (Some(20), 110), (None, 250)] {
        let shown = text(SIGINT, rows.clone(), columns);
        let line = shown.lines().nth(2).unwrap();
        let width: usize =
            line.chars().map(|letter| if letter < '\u{1100}' || letter == '…' { 1 } else { 2 }).sum();
        assert!(width <= longest, "{width} columns: {line}");
        assert!(line.ends_with('…') && !shown.contains(['\x1b', '\t', '\u{202e}']), "{line}");
    }
}

#[test]
fn hint_names_rank_that_finished_early() {
    let mut rows = vec![row(0, JoinState::Joined, 0, "done"), row(1, JoinState::Joined, 0, "")];
    rows[0].process = ProcessState::Ended(Exit::Code(0));
    let shown = text(SIGINT, rows, None);
    assert!(shown.starts_with("all ranks that run have joined the store; the ranks when SIGINT came:\n"));
    assert!(shown.contains("\n  0     4000  exit code 0   yes     0.00 s    12 s before: done\n"), "{shown}");
    assert!(shown.contains("\n  hint: rank 0 has finished, and the others may wait"), "{shown}");
}

#[test]
fn pids_that_are_not_consecutive_are_listed() {
    let pids = |pids: &[i32]| {
        let rows: Vec<RankRow> = pids
            .iter()
            .map(|pid| RankRow { pid: Some(Pid::from_raw(*pid)), ..row(0, JoinState::Joined, 0, "") })
            .collect();
        pid_names(&rows.iter().collect())
    };
    assert_eq!(pids(&[10]), "10");
    assert_eq!(pids(&[10, 17]), "10, 17");
    assert_eq!(pids(&[17, 10, 11, 12]), "10-12, 17");
    assert_eq!(pids(&[1, 3, 5, 7, 9]), "1, 3, 5, …");
}
