//! The explanation as text for people. Pure.

use std::fmt::Write as _;

use super::{
    Explanation, LaunchValue, ListenPorts, NodesSection, Pending, ReadAs, SettingLine, SettingOrigin, Store,
    StreamTarget, Text, Variable, WorkerPlan,
};
use rankrun_core::device::affinity::format_ranges;
use rankrun_core::shell::quote::for_people;
use rankrun_core::spec::stop::StopTarget;

/// Whether the text has colour codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The text has no colour codes.
    Plain,
    /// The text has colours for a terminal.
    Coloured,
}

/// The settings that the text has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownSettings {
    /// The settings that an option, a variable or a file set.
    Differing,
    /// All settings, with their defaults.
    All,
}

/// Wider values do not push the sources of the other settings away.
const MAX_VALUE_WIDTH: usize = 44;
const EXTERNAL_WORKER: &str = "the terminal that starts it";

/// One command for a shell; each variable has a line.
fn read_as_lines(read_as: &ReadAs) -> String {
    let removed = read_as.environment.iter().filter(|(_, value)| value.is_none());
    let removed: Vec<String> = removed.map(|(name, _)| format!("-u {name}")).collect();
    let env = (!removed.is_empty()).then(|| format!("env {}", removed.join(" ")));
    let set = read_as.environment.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let set = set.map(|(name, value)| format!("{name}={}", for_people(&value.0)));
    let lines: Vec<String> = env.into_iter().chain(set).chain([read_as.command_line()]).collect();
    format!("  {}\n", lines.join(" \\\n  "))
}

/// The whole text, each line ended.
pub(super) fn render(explanation: &Explanation, style: Style, shown_settings: ShownSettings) -> String {
    let mut page = TextPage { style, text: String::new() };
    let count = explanation.ranks.len();
    let workers = if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") };
    let name = explanation.name;
    page.heading(&format!("{name} would start {workers} on this node; nothing was started"));
    for warning in &explanation.warnings {
        page.warning(warning);
    }
    if let Some(read_as) = &explanation.read_as {
        page.section("read as");
        page.text.push_str(&read_as_lines(read_as));
    }
    let is_shown = |setting: &&SettingLine| {
        shown_settings == ShownSettings::All
            || setting.source != SettingOrigin::Default
            || !setting.overrides.is_empty()
    };
    let settings: Vec<&SettingLine> = explanation.settings.iter().filter(is_shown).collect();
    page.section("settings");
    page.table(
        settings.iter().map(|setting| [setting.name.to_string(), value_of(setting), origins(setting)]),
    );
    let defaults = explanation.settings.len() - settings.len();
    if defaults > 0 {
        page.text.push_str(&format!(
            "  {defaults} more have their defaults: `rankrun explain --all` lists them\n"
        ));
    }
    page.section("job");
    page.table(job_rows(explanation));
    let common = common_variables(&explanation.ranks);
    if !common.is_empty() {
        page.section("every rank has these variables from the launcher");
        page.table(common.iter().map(|variable| row(variable)));
    }
    for worker in &explanation.ranks {
        let hand =
            if explanation.external_worker == Some(worker.local_rank) { ", started by hand" } else { "" };
        let rank = worker.rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
        page.section(&format!("rank {rank} (local rank {}, {}{hand})", worker.local_rank, worker.device));
        page.table(worker_rows(worker));
        let own = worker.variables.iter().filter(|variable| !common.contains(variable));
        page.table(own.map(row));
    }
    page.text.push_str("\n`?`, `*` and what is in parentheses is only known at launch.\n");
    page.text
}

fn job_rows(explanation: &Explanation) -> Vec<[String; 3]> {
    let plain = |name: &str, value: String| [name.to_owned(), value, String::new()];
    let store = &explanation.store;
    let signals = &explanation.signals;
    let mut rows = vec![
        plain("working folder", for_people(&explanation.working_folder.0)),
        plain("run id", shown(&explanation.run_id)),
        plain("store", store_address(store)),
    ];
    if let Some(endpoint) = &store.endpoint {
        rows.push(plain("agents meet at", format!("{}, port {}", endpoint.host, shown(&endpoint.port))));
    }
    if let Some(nodes) = &explanation.nodes {
        rows.extend(node_rows(nodes).into_iter().map(|(name, value)| plain(name, value)));
    }
    rows.push(plain("stop the job", signals.stop.join(", ")));
    if !signals.forward.is_empty() {
        rows.push(plain("go to workers", signals.forward.join(", ")));
    }
    let given = match signals.worker_signal {
        Some(signal) => format!("{signal}, whichever signal stops the job"),
        None => "the signal that stops the job".to_owned(),
    };
    match signals.worker_signal_to {
        StopTarget::Auto => {
            let scope = "Python and rankrun-worker programs alone, others with their group";
            rows.push(plain("workers get", format!("{given}; {scope}")));
        }
        StopTarget::Rank => rows.push(plain("workers get", format!("{given}, each rank alone"))),
        StopTarget::Group if signals.worker_signal.is_some() => rows.push(plain("workers get", given)),
        StopTarget::Group => {}
    }
    let causes: Vec<String> =
        signals.grace_for_seconds.iter().map(|(cause, grace)| format!("; {cause}: {grace} s")).collect();
    let grace = format!("{} s after a stop began{}", signals.grace_seconds, causes.concat());
    rows.push(plain("SIGKILL", grace));
    if let Some(limit) = signals.dstate_seconds {
        rows.push(plain("stuck", format!("a worker that is stuck in the kernel for {limit} s has failed")));
    }
    rows.push(plain("restarts", explanation.max_restarts.to_string()));
    let logs = explanation.log_folder.as_ref().map_or_else(|| "none".to_owned(), shown);
    rows.push(plain("log folder", logs));
    rows
}

fn store_address(store: &Store) -> String {
    let Store { host, port, opened_by, .. } = store;
    if [host, port].contains(&&LaunchValue::AtLaunch(Pending::Agreed)) {
        return "of the node that gets rank 0".to_owned();
    }
    format!("{}, port {}, opened by {opened_by}", shown(host), shown(port))
}

fn node_rows(nodes: &NodesSection) -> Vec<(&'static str, String)> {
    let count = match (nodes.min, nodes.max) {
        (1, 1) => "1, and spares".to_owned(),
        (min, max) if min == max => max.to_string(),
        (min, max) => format!("{min} to {max}"),
    };
    let me = nodes.node_rank.map_or_else(String::new, |rank| format!("; this one has node rank {rank}"));
    let wait = match nodes.last_call_seconds {
        Some(last) => format!("until there are {}, then {last} s for more", nodes.min),
        None => "until all are there".to_owned(),
    };
    let mut rows = vec![
        ("nodes", format!("{count}{me}")),
        ("they meet in", format!("a store that is opened by {}", nodes.store_opened_by)),
        ("waits for them", format!("up to {} s {wait}", nodes.join_timeout_seconds)),
        ("lost", format!("a node that sends no heartbeat for {} s is lost", nodes.lease_seconds)),
    ];
    if let Some(addr) = &nodes.local_addr {
        rows.push(("reached at", for_people(addr.as_ref())));
    }
    if let Some(interface) = &nodes.interface {
        rows.push(("reached by", for_people(interface.as_ref())));
    }
    if let Some(ListenPorts { first, last }) = nodes.ports {
        rows.push(("listens on", format!("ports {first} to {last}")));
    }
    rows
}

fn worker_rows(worker: &WorkerPlan) -> Vec<[String; 3]> {
    let plain = |name: &str, value: String| [name.to_owned(), value, String::new()];
    let arguments: Vec<String> = worker.argv.iter().map(|argument| for_people(&argument.0)).collect();
    let mut rows = Vec::new();
    if let Some(card) = &worker.card {
        let node = card.numa_node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
        rows.push(plain("device", format!("{}{node}, by {}", card.title, card.chosen_by)));
    }
    if let Some(cpus) = &worker.cpus {
        rows.push(plain("CPUs", format_ranges(cpus)));
    }
    rows.push(plain("runs", arguments.join(" ")));
    if worker.argv.first() != Some(&worker.program) {
        rows.push(plain("program", for_people(&worker.program.0)));
    }
    let stdin = match worker.stdin {
        "launcher" => "the launcher's",
        "terminal" => EXTERNAL_WORKER,
        nothing => nothing,
    };
    rows.push(plain("stdin", stdin.to_owned()));
    rows.push(plain("stdout", stream(&worker.stdout)));
    rows.push(plain("stderr", stream(&worker.stderr)));
    let error_file = worker.error_file.as_ref().map_or_else(|| "none".to_owned(), shown);
    rows.push(plain("error file", error_file));
    if !worker.unset.is_empty() {
        rows.push(plain("not set", worker.unset.join(", ")));
    }
    rows
}

fn stream(stream: &StreamTarget) -> String {
    let behind = |file: &Option<LaunchValue>| {
        file.as_ref().map_or_else(String::new, |file| format!(", and {}", shown(file)))
    };
    match stream {
        StreamTarget::Launcher => "the launcher's".to_owned(),
        StreamTarget::Terminal => EXTERNAL_WORKER.to_owned(),
        StreamTarget::File { file } => shown(file),
        StreamTarget::Console { prefix: None, file } => format!("console{}", behind(file)),
        StreamTarget::Console { prefix: Some(prefix), file } => {
            format!("console behind {}{}", for_people(prefix.as_ref()), behind(file))
        }
    }
}

/// The variables that are the same for all workers; empty for a single worker.
fn common_variables(workers: &[WorkerPlan]) -> Vec<&Variable> {
    let [first, rest @ ..] = workers else { return Vec::new() };
    if rest.is_empty() {
        return Vec::new();
    }
    let is_common = |variable: &&Variable| rest.iter().all(|other| other.variables.contains(variable));
    first.variables.iter().filter(is_common).collect()
}

fn row(variable: &Variable) -> [String; 3] {
    let mut place = match variable.source {
        SettingOrigin::Launcher => String::new(),
        _ => place(&variable.source),
    };
    if let Some(Text(was)) = &variable.was {
        let comma = if place.is_empty() { "" } else { ", " };
        place.push_str(&format!("{comma}was {}", for_people(was)));
    }
    [variable.name.to_owned(), shown(&variable.value), place]
}

/// The value, else the default in words; `-` where nothing is the default.
fn value_of(setting: &SettingLine) -> String {
    match (&setting.value, &setting.default) {
        (Some(value), _) => shown(value),
        (None, Some(default)) => default.clone(),
        (None, None) if setting.source == SettingOrigin::Default => "-".to_owned(),
        (None, None) => "''".to_owned(),
    }
}

/// Where the value was set, which other places set one, and that it has no effect.
fn origins(setting: &SettingLine) -> String {
    let mut text = match &setting.source {
        SettingOrigin::Option { name } if name.strip_prefix("--") == Some(&setting.name) => {
            "command line".to_owned()
        }
        SettingOrigin::Option { name } => format!("command line, {name}"),
        source => place(source),
    };
    if !setting.overrides.is_empty() {
        let others: Vec<String> = setting.overrides.iter().map(place).collect();
        text.push_str(&format!(", over {}", others.join(" and ")));
    }
    if !setting.has_effect {
        text.push_str("; no effect");
    }
    text
}

fn place(source: &SettingOrigin) -> String {
    match source {
        SettingOrigin::Option { name } | SettingOrigin::Variable { name } => name.clone(),
        SettingOrigin::File { path, line } => format!("{path}:{line}"),
        SettingOrigin::Default | SettingOrigin::Launcher => "default".to_owned(),
        SettingOrigin::Because { reason } => (*reason).to_owned(),
    }
}

fn shown(value: &LaunchValue) -> String {
    match value {
        LaunchValue::Known(text) => for_people(text),
        LaunchValue::AtLaunch(Pending::FreePort) => "(free at launch)".to_owned(),
        LaunchValue::AtLaunch(Pending::Agreed) => "(agreed by the nodes)".to_owned(),
        LaunchValue::AtLaunch(Pending::Interface) => "(interface of the way to the store)".to_owned(),
        LaunchValue::AtLaunch(Pending::RunId | Pending::Mark) => "(fresh at launch)".to_owned(),
        LaunchValue::AtLaunch(Pending::Path(pattern)) => match pattern.to_str() {
            Some(pattern) if !pattern.chars().any(char::is_control) => pattern.to_owned(),
            _ => for_people(pattern.as_os_str()),
        },
    }
}

struct TextPage {
    style: Style,
    text: String,
}

impl TextPage {
    fn paint(&self, codes: &str, text: &str) -> String {
        match self.style {
            Style::Coloured if !text.is_empty() => format!("\x1b[{codes}m{text}\x1b[0m"),
            Style::Plain | Style::Coloured => text.to_owned(),
        }
    }

    fn heading(&mut self, text: &str) {
        let line = self.paint("1", text);
        let _ = writeln!(self.text, "{line}");
    }

    fn section(&mut self, text: &str) {
        self.text.push('\n');
        self.heading(text);
    }

    fn warning(&mut self, text: &str) {
        let label = self.paint("1;33", "warning:");
        let _ = writeln!(self.text, "{label} {text}");
    }

    /// Name, value and origin in three columns.
    fn table(&mut self, rows: impl IntoIterator<Item = [String; 3]>) {
        let rows: Vec<[String; 3]> = rows.into_iter().collect();
        let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (names, values) = (widest(0), widest(1).min(MAX_VALUE_WIDTH));
        for [name, value, origin] in &rows {
            let line = format!("  {name:<names$}  {value:<values$}");
            match origin.as_str() {
                "" => self.text.push_str(line.trim_end()),
                origin => {
                    self.text.push_str(&line);
                    self.text.push_str("  ");
                    self.text.push_str(&self.paint("2", origin));
                }
            }
            self.text.push('\n');
        }
    }
}
