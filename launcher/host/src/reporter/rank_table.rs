//! The table of ranks that follows a stop. Pure.
//!
//! Ranks that look alike share a row, so that many of them stay readable.

use std::time::Duration;

use rankrun_contract::rank::Rank;

use rankrun_core::job_event::activity::LastOutput;
use rankrun_core::job_event::activity::RunState;
use rankrun_core::job_event::rank_table::{JoinState, ProcessState, RankRow, RankTable};
use rankrun_core::plain::plain;
use rankrun_core::rank_names::{number_runs, rank_names};
use rankrun_core::rendezvous::{NodeName, Round};
use rankrun_core::spec::stop::StopReason;

/// The pids of a row: further runs are left out.
const MOST_PID_RUNS: usize = 3;
/// In a table with more rows, ranks with different last lines share a row too.
const MOST_ROWS: usize = 16;
/// A longer last line is cut.
const LONGEST_LINE: usize = 160;
/// However narrow the terminal is, so much of the last line is shown.
const SHORTEST_LINE: usize = 24;
const HEADINGS: [&str; 5] = ["rank", "pid", "process", "joined", "CPU time"];

const STACKS: &str = "while it hangs, `rankrun stacks` shows where each rank waits";

/// The facts that the text depends on, beside the rows.
#[derive(Debug, Clone)]
pub(crate) struct TableSetting {
    /// Global rank of local rank 0.
    base_rank: Rank,
    /// This node, where there are several.
    node: Option<NodeName>,
    /// Columns of the terminal, where there is one.
    columns: Option<usize>,
}

impl TableSetting {
    /// In this round, where there are several nodes.
    #[must_use]
    pub(crate) fn of(round: Option<&Round>, columns: Option<usize>) -> Self {
        let node = round.map(Round::own_name);
        Self { base_rank: round.map_or(Rank(0), |round| round.base_rank), node, columns }
    }

    fn rank(&self, row: &RankRow) -> Rank {
        Rank(self.base_rank.0.saturating_add(row.local_rank.0))
    }

    fn names<'a>(&self, rows: impl IntoIterator<Item = &'a RankRow>) -> String {
        rank_names(rows.into_iter().map(|row| self.rank(row)))
    }
}

/// The whole text, without the last line end.
#[must_use]
pub(crate) fn render(table: &RankTable, setting: &TableSetting) -> String {
    let mut lines = vec![heading(table, setting)];
    lines.extend(grid(&groups(&table.rows), setting));
    lines.extend(hint(table, setting).map(|hint| format!("  hint: {hint}")));
    lines.join("\n")
}

fn of_state(table: &RankTable, joined: JoinState) -> Vec<&RankRow> {
    table.rows.iter().filter(|row| row.may_be_missing() && row.joined == joined).collect()
}

fn heading(table: &RankTable, setting: &TableSetting) -> String {
    let (missing, unknown) = (of_state(table, JoinState::NotJoined), of_state(table, JoinState::Unknown));
    let fact = match (missing.len(), unknown.len()) {
        (0, 0) => "all ranks that run have joined the store".to_owned(),
        (0, _) => {
            format!("it is not known whether {} joined the store", setting.names(unknown))
        }
        (1, _) => format!("{} has not joined the store", setting.names(missing)),
        (_, _) => format!("{} have not joined the store", setting.names(missing)),
    };
    let node = match &setting.node {
        Some(name) => format!(" of {name}"),
        None => String::new(),
    };
    let moment = match table.reason {
        StopReason::Signal(signal) => format!("when {signal} came"),
        StopReason::TimeLimit => "when the time limit was over".to_owned(),
        StopReason::Membership | StopReason::EndedElsewhere => "when another node left".to_owned(),
        StopReason::WorkerFailed
        | StopReason::StartTimeout
        | StopReason::NotStarted
        | StopReason::RestartRequest
        | StopReason::LeftoverTimeout => "at that time".to_owned(),
    };
    format!("{fact}; the ranks{node} {moment}:")
}

/// The one thing to do about it.
fn hint(table: &RankTable, setting: &TableSetting) -> Option<String> {
    let missing = of_state(table, JoinState::NotJoined);
    let in_state = |state: ProcessState| -> Vec<&RankRow> {
        missing.iter().copied().filter(|row| row.process == state).collect()
    };
    let alive = |state: RunState| in_state(ProcessState::Alive(state));
    let (dstate, stopped) = (alive(RunState::Uninterruptible), alive(RunState::Stopped));
    let (external, unstarted) =
        (in_state(ProcessState::ExternalNotStarted), in_state(ProcessState::NotStarted));
    let is = |rows: &[&RankRow]| if rows.len() == 1 { "is" } else { "are" };
    if !external.is_empty() {
        let are = is(&external);
        return Some(format!("{} {are} left out and not started yet", setting.names(external)));
    }
    if !unstarted.is_empty() {
        let are = is(&unstarted);
        return Some(format!(
            "{} {are} not started yet: the launcher waits for a file system",
            setting.names(unstarted)
        ));
    }
    if !dstate.is_empty() {
        let are = is(&dstate);
        return Some(format!(
            "{} {are} stuck in the kernel: a device or a file server does not answer; see `dmesg`",
            setting.names(dstate)
        ));
    }
    if !stopped.is_empty() {
        let are = is(&stopped);
        return Some(format!("{} {are} stopped, by SIGSTOP or by a debugger", setting.names(stopped)));
    }
    if missing.is_empty() {
        return hint_where_none_is_missing(table, setting);
    }
    let is_all = missing.len() == table.rows.len();
    Some(if is_all {
        "a program without torch.distributed never joins".to_owned()
    } else {
        STACKS.to_owned()
    })
}

fn hint_where_none_is_missing(table: &RankTable, setting: &TableSetting) -> Option<String> {
    if table.rows.iter().any(RankRow::may_be_missing) {
        return Some(format!("these ranks have no connection to the store now; {STACKS}"));
    }
    let finished: Vec<_> = table.rows.iter().filter(|row| row.has_finished()).collect();
    if !finished.is_empty() {
        let has = if finished.len() == 1 { "has" } else { "have" };
        return Some(format!(
            "{} {has} finished, and the others may wait for a collective call with it: all ranks make the same calls",
            setting.names(finished)
        ));
    }
    let hint = || format!("a rank that hangs has old output; {STACKS}");
    (table.reason == StopReason::TimeLimit).then(hint)
}

/// Ranks that share a row, the first one first.
type Group<'a> = Vec<&'a RankRow>;

fn groups(rows: &[RankRow]) -> Vec<Group<'_>> {
    let by_output = grouped(rows, |one, other| is_alike(one, other) && text_of(one) == text_of(other));
    if by_output.len() <= MOST_ROWS { by_output } else { grouped(rows, is_alike) }
}

fn grouped(rows: &[RankRow], belong_together: impl Fn(&RankRow, &RankRow) -> bool) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| belong_together(group[0], row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn is_alike(one: &RankRow, other: &RankRow) -> bool {
    process(one.process) == process(other.process)
        && one.joined == other.joined
        && is_similar(one.cpu_time, other.cpu_time)
}

/// By a factor of ten, or both next to nothing.
fn is_similar(one: Option<Duration>, other: Option<Duration>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
    let (less, more) = (one.min(other), one.max(other));
    more < Duration::from_secs(1) || more <= less.saturating_mul(10)
}

fn text_of(row: &RankRow) -> &str {
    match &row.output {
        LastOutput::Line { text, .. } => text,
        LastOutput::Empty => "",
        LastOutput::Unavailable => "\n",
    }
}

fn grid(groups: &[Group<'_>], setting: &TableSetting) -> Vec<String> {
    let cells: Vec<[String; 5]> = groups.iter().map(|group| cells(group, setting)).collect();
    let headings = HEADINGS.map(str::to_owned);
    let widths: [usize; 5] = std::array::from_fn(|at| {
        [&headings].into_iter().chain(&cells).map(|cells| cells[at].chars().count()).max().unwrap_or_default()
    });
    let start = |cells: &[String; 5]| -> String {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("  {cell:width$}"));
        padded.collect::<String>() + "  "
    };
    let room = setting.columns.map_or(LONGEST_LINE, |columns| {
        let used = start(&headings).chars().count() + 1;
        columns.saturating_sub(used).clamp(SHORTEST_LINE, LONGEST_LINE)
    });
    let lines = groups.iter().zip(&cells);
    let lines = lines.map(|(group, cells)| start(cells) + &cut(&last_output(group, setting), room));
    [start(&headings) + "last output"].into_iter().chain(lines).collect()
}

/// A range is of consecutive pids alone: a person may signal each number of it.
fn pid_names(group: &Group<'_>) -> String {
    let pids = group.iter().filter_map(|row| row.pid).filter_map(|pid| u32::try_from(pid.as_raw()).ok());
    let mut runs = number_runs(&pids.collect());
    if runs.is_empty() {
        return "-".to_owned();
    }
    if runs.len() > MOST_PID_RUNS {
        runs.truncate(MOST_PID_RUNS);
        runs.push("…".to_owned());
    }
    runs.join(", ")
}

fn cells(group: &Group<'_>, setting: &TableSetting) -> [String; 5] {
    let ranks = setting.names(group.iter().copied());
    let ranks = ranks.split_once(' ').map_or(ranks.clone(), |(_, numbers)| numbers.to_owned());
    let pids = pid_names(group);
    let first = group[0];
    let joined = match (first.joined, first.process) {
        (JoinState::Joined, _) => "yes",
        (JoinState::NotJoined, _) => "no",
        (JoinState::Unknown, ProcessState::Ended(_)) => "-",
        (JoinState::Unknown, _) => "unknown",
    };
    let times: Vec<Duration> = group.iter().filter_map(|row| row.cpu_time).collect();
    let cpu_time = if times.is_empty() { "-".to_owned() } else { range(&times) };
    [cut(&ranks, SHORTEST_LINE), pids, process(first.process), joined.to_owned(), cpu_time]
}

fn process(state: ProcessState) -> String {
    let text = match state {
        ProcessState::NotStarted => "waits to start",
        ProcessState::ExternalNotStarted => "not started",
        ProcessState::Unknown => "unknown",
        ProcessState::Ended(exit) => return exit.to_string(),
        ProcessState::Alive(RunState::Ended) => "just ended",
        ProcessState::Alive(RunState::Running) => "alive, runs",
        ProcessState::Alive(RunState::Waiting) => "alive, waits",
        ProcessState::Alive(RunState::Uninterruptible) => "alive, in kernel (D)",
        ProcessState::Alive(RunState::Stopped) => "alive, stopped (T)",
    };
    text.to_owned()
}

/// For ranks with different last lines, the first one's line with its rank.
fn last_output(group: &Group<'_>, setting: &TableSetting) -> String {
    let ages: Vec<Duration> = group
        .iter()
        .filter_map(|row| match row.output {
            LastOutput::Line { age, .. } => Some(age),
            LastOutput::Empty | LastOutput::Unavailable => None,
        })
        .collect();
    let with_line = group.iter().find(|row| matches!(row.output, LastOutput::Line { .. }));
    let is_one_text = group.iter().all(|row| text_of(row) == text_of(group[0]));
    match with_line {
        Some(row) if is_one_text => format!("{} before: {}", range(&ages), plain(text_of(row)).trim()),
        Some(row) => {
            format!("{} before, rank {}: {}", range(&ages), setting.rank(row), plain(text_of(row)).trim())
        }
        None if group[0].output == LastOutput::Unavailable => "not seen".to_owned(),
        None => "none".to_owned(),
    }
}

fn range(times: &[Duration]) -> String {
    let shortest = times.iter().min().copied().unwrap_or_default();
    let longest = times.iter().max().copied().unwrap_or_default();
    let (from, to) = (time(shortest), time(longest));
    if from == to { to } else { format!("{from} to {to}") }
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.2} s", time.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// Cuts the text to this number of columns. A character that may be two columns wide counts as two.
fn cut(text: &str, room: usize) -> String {
    let width = |letter: char| if letter < '\u{1100}' || letter == '…' { 1 } else { 2 };
    let text = text.replace('\t', " ");
    if text.chars().map(width).sum::<usize>() <= room {
        return text;
    }
    let mut remaining = room.saturating_sub(1);
    let fits = |letter: &char| {
        let next = remaining.checked_sub(width(*letter));
        remaining = next.unwrap_or(0);
        next.is_some()
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
#[path = "rank_table_tests.rs"]
mod tests;
