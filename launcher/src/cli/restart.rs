//! The restart policy: reads `--restart-…` and `--progress-…`, and refuses rules that can never match. The result is a
//! [`RestartPolicy`]; the agent decides by it when a worker fails.

mod coverage;

use std::path::PathBuf;
use std::time::Duration;

use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, Rank};

use super::config::RuleText;
use super::contradiction::{are_side_by_side, idle_beside_zero, without_effect};
use super::error::{CliError, Expected, Origin, RuleProblem, SettingError};
use super::option::OptionValue;
use super::resolve::refused;
use super::settings::{Setting, Settings};
use super::values::time;
use rankrun_core::facts::Facts;
use rankrun_core::notice::Notice;
use rankrun_core::posix::Signal;
use rankrun_core::spec::restart::{
    Backoff, Conditions, ExitCodes, FailureCause, ProgressLimit, RestartPolicy, RestartRule, RuleAction,
};
use rankrun_core::spec::signal::parse_signal;

const FACTOR: Expected = Expected::new("a number from 1 up", "2");
const SHARE: Expected = Expected::new("a number from 0 to 1", "0.1");
const COUNT: Expected = Expected::new("a number from 1 to 4294967295", "2");
const AT_LEAST_DELAY: Expected = Expected::new("as long as the first delay", "")
    .advised(|_, _| Some("make it as long as `--restart-delay`, or leave it out".to_owned()));

const DEFAULT_FACTOR: f64 = 2.0;
const DEFAULT_CAP: Duration = Duration::from_secs(300);
const DEFAULT_PROGRESS_RESTARTS: u32 = 3;

/// When and after what the workers start again.
///
/// # Errors
/// Values out of range, rules that can never match, and what refines nothing.
pub(super) fn resolve_restart(
    settings: &Settings<'_>,
    workers: LocalWorldSize,
    nodes: NodeCount,
) -> Result<RestartPolicy, CliError> {
    let window = time(settings, &settings.args.restart_window);
    let reset_after = time(settings, &settings.args.restart_reset);
    let backoff = resolve_backoff(settings)?;
    let progress = resolve_progress(settings)?;
    refuse_without_restarts(settings)?;
    let value = |setting: Option<Setting<Duration>>| setting.map(|setting| setting.value);
    let rules = resolve_rules(settings, Workers { here: workers, nodes })?;
    Ok(RestartPolicy {
        window: value(window),
        backoff,
        reset_after: value(reset_after),
        rules,
        progress,
        exclude_node_after: settings.get(&settings.args.exclude_node_after).map(|share| share.value.0),
    })
}

/// The job may make it later; if the name is a slip, now is the time to see it.
pub(super) fn missing_folder_notice(policy: &RestartPolicy, facts: &Facts) -> Option<Notice> {
    let folder = policy.progress.as_ref()?.folder.as_ref()?;
    let is_there = facts.exists(&facts.absolute(folder));
    (!is_there).then(|| Notice::NoProgressFolder { folder: folder.clone() })
}

/// Options without a meaning for a job that never restarts.
const OF_RESTARTS: [&str; 6] = [
    "restart-window",
    "restart-delay",
    "restart-reset",
    "progress-dir",
    "progress-restarts",
    "exclude-node-after",
];

/// A wait before restarts needs restarts. A 0 above a file counts: the command line decides.
fn refuse_without_restarts(settings: &Settings<'_>) -> Result<(), CliError> {
    let most = settings.get(&settings.args.torchrun.max_restarts);
    for option in OF_RESTARTS {
        let Some(found) = settings.find(option) else { continue };
        match &most {
            None => without_effect(found.origin, "`--max-restarts`")?,
            Some(most) if most.value == 0 && most.is_of_file() == found.is_of_file() => {
                idle_beside_zero(found.origin, &most.origin)?;
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn resolve_backoff(settings: &Settings<'_>) -> Result<Option<Backoff>, CliError> {
    let delay = time(settings, &settings.args.restart_delay);
    let cap = time(settings, &settings.args.restart_max_delay);
    let factor = number(settings, &settings.args.restart_factor, FACTOR, |factor| factor >= 1.0)?;
    let jitter =
        number(settings, &settings.args.restart_jitter, SHARE, |share| (0.0..=1.0).contains(&share))?;
    refuse_without_delay(settings, delay.as_ref())?;
    let Some(delay) = delay.map(|delay| delay.value) else { return Ok(None) };
    if let Some(Setting { origin, value }) = &cap
        && *value < delay
    {
        let value = humantime::format_duration(*value);
        return Err(refused(origin.clone(), value, AT_LEAST_DELAY));
    }
    let cap = cap.map_or(DEFAULT_CAP.max(delay), |cap| cap.value);
    let factor = factor.unwrap_or(DEFAULT_FACTOR);
    let jitter = jitter.unwrap_or(0.0);
    Ok((!delay.is_zero()).then_some(Backoff { delay, factor, cap, jitter }))
}

/// A wait that there is not cannot grow.
fn refuse_without_delay(settings: &Settings<'_>, delay: Option<&Setting<Duration>>) -> Result<(), CliError> {
    for option in ["restart-factor", "restart-max-delay", "restart-jitter"] {
        let Some(Setting { origin, .. }) = settings.find(option) else { continue };
        match delay {
            None => without_effect(origin, "`--restart-delay`")?,
            Some(delay) if delay.value.is_zero() && are_side_by_side(&delay.origin, &origin) => {
                idle_beside_zero(origin, &delay.origin)?;
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn resolve_progress(settings: &Settings<'_>) -> Result<Option<ProgressLimit>, CliError> {
    let restarts = match settings.get(&settings.args.progress_restarts) {
        None => None,
        Some(Setting { origin, value }) => match u32::try_from(value) {
            Ok(restarts) if restarts > 0 => Some(restarts),
            _ => return Err(refused(origin, value, COUNT)),
        },
    };
    let folder = settings.get(&settings.args.progress_dir).map(|folder| folder.value);
    let folder = folder.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let is_asked = folder.is_some() || restarts.is_some();
    let restarts = restarts.unwrap_or(DEFAULT_PROGRESS_RESTARTS);
    Ok(is_asked.then_some(ProgressLimit { folder, restarts }))
}

fn number(
    settings: &Settings<'_>,
    number: &Option<OptionValue<f64>>,
    expected: Expected,
    is_good: impl Fn(f64) -> bool,
) -> Result<Option<f64>, CliError> {
    match settings.get(number) {
        Some(Setting { origin, value }) if !value.is_finite() || !is_good(value) => {
            Err(refused(origin, value, expected))
        }
        found => Ok(found.map(|found| found.value)),
    }
}

/// The workers that a rule can be about.
#[derive(Debug, Clone, Copy)]
struct Workers {
    /// On this node.
    here: LocalWorldSize,
    nodes: NodeCount,
}

impl Workers {
    /// How many ranks there are, where no other node decides about it.
    fn ranks(self) -> Option<u32> {
        (self.nodes == NodeCount::ONE).then_some(self.here.get())
    }
}

fn resolve_rules(settings: &Settings<'_>, workers: Workers) -> Result<Vec<RestartRule>, CliError> {
    let written: Vec<RuleText> = match settings.get(&settings.args.restart_rules) {
        Some(Setting { origin, value }) => {
            let texts = value.split(',').map(str::trim).filter(|text| !text.is_empty());
            let setting = |text: &str| Setting { origin: origin.clone(), value: text.to_owned() };
            texts.map(|text| RuleText { text: setting(text), keys: Vec::new() }).collect()
        }
        None => settings.config.rules().to_vec(),
    };
    // The file's rules are checked also where others count.
    for RuleText { text: Setting { origin, value }, keys } in settings.config.rules() {
        parse_rule(value).map_err(|problem| rule_error((origin, keys), value, &problem))?;
    }
    let most = settings.get(&settings.args.torchrun.max_restarts);
    let mut rules = Vec::new();
    for RuleText { text: Setting { origin, value }, keys } in &written {
        let rule = parse_rule(value).and_then(|rule| {
            check_rule(&rule, &rules, workers)?;
            if matches!(rule.when.cause, Some(FailureCause::Hang | FailureCause::Desync))
                && !matches!(origin, Origin::Variable(_))
                && settings.find("hang-timeout").is_none()
            {
                return Err(RuleProblem::without_hang_timeout());
            }
            if rule.then == RuleAction::Restart && is_without_restarts(origin, most.as_ref()) {
                return Err(RuleProblem::without_restarts());
            }
            Ok(rule)
        });
        rules.push(rule.map_err(|problem| rule_error((origin, keys), value, &problem))?);
    }
    Ok(rules)
}

/// A variable may be there for all jobs of a user, and a 0 above a file decides.
fn is_without_restarts(origin: &Origin, most: Option<&Setting<i128>>) -> bool {
    match most {
        _ if matches!(origin, Origin::Variable(_)) => false,
        None => true,
        Some(most) => most.value == 0 && are_side_by_side(origin, &most.origin),
    }
}

fn rule_error(
    (rule_origin, keys): (&Origin, &[(String, Origin)]),
    rule: &str,
    problem: &RuleProblem,
) -> CliError {
    let key = problem.key.as_ref().and_then(|key| keys.iter().find(|(known, _)| known == key));
    let origin = key.map_or(rule_origin, |(_, origin)| origin);
    let text = format!("has the rule `{rule}`, {}", problem.text);
    SettingError::of_origin(origin.clone(), text, problem.hint(origin)).into()
}

/// Whether the rule can ever decide anything, behind the rules before it.
fn check_rule(rule: &RestartRule, before: &[RestartRule], workers: Workers) -> Result<(), RuleProblem> {
    let Conditions { exit, signal, cause, rank, node } = rule.when;
    if exit.is_some_and(|codes| codes.contains(0)) {
        return Err(RuleProblem::never_matches("exit", "exit code 0 is not a failure"));
    }
    if exit.is_some() && signal.is_some() {
        let reason = "a worker that a signal ends has no exit code";
        return Err(RuleProblem::never_matches("signal", reason));
    }
    if let Some(cause) = cause {
        if exit.is_some() {
            let reason = format!("a worker that fails by `{cause}` has no exit code");
            return Err(RuleProblem::never_matches("exit", reason));
        }
        if signal.is_some_and(|signal| cause != FailureCause::Oom || signal != Signal::SIGKILL) {
            let reason = format!("a worker that fails by `{cause}` is not ended by that signal");
            return Err(RuleProblem::never_matches("signal", reason));
        }
    }
    if let (Some(rank), Some(workers)) = (rank, workers.ranks())
        && rank.0 >= workers
    {
        let reason = format!("the ranks are 0 to {}", workers - 1);
        return Err(RuleProblem::never_matches("rank", reason));
    }
    if node.is_some_and(|node| node.0 >= workers.nodes.get()) {
        let reason = match workers.nodes.get() {
            1 => "a job of one node has node rank 0 only".to_owned(),
            nodes => format!("the node ranks are 0 to {}", nodes - 1),
        };
        return Err(RuleProblem::never_matches("node", reason));
    }
    if let Some(signal) = signal.filter(|signal| !signal.ends_by_default()) {
        return Err(RuleProblem::never_matches("signal", format!("{signal} ends no process")));
    }
    match coverage::covered_by(rule, before, workers.ranks(), workers.nodes.get()) {
        Some(earlier) => {
            let shown: Vec<String> = earlier.iter().map(|earlier| format!("`{earlier}`")).collect();
            Err(RuleProblem::covered_by(&shown.join(" and ")))
        }
        None => Ok(()),
    }
}

/// `exit=10-19/42+rank=0:fail`
fn parse_rule(text: &str) -> Result<RestartRule, RuleProblem> {
    let (conditions, action) = text.rsplit_once(':').ok_or_else(RuleProblem::without_action)?;
    let action = action.trim();
    let then = parse_action(action).ok_or_else(|| RuleProblem::unknown_action(action))?;
    let mut when = Conditions::default();
    if conditions.trim() != "any" {
        for condition in conditions.split('+').map(str::trim) {
            add_condition(&mut when, condition)?;
        }
    }
    Ok(RestartRule { when, then })
}

fn add_condition(when: &mut Conditions, condition: &str) -> Result<(), RuleProblem> {
    let Some((name, value)) = condition.split_once('=') else {
        let cause = FailureCause::KEYWORDS.into_iter().find(|(known, _)| *known == condition);
        let (_, cause) = cause.ok_or_else(|| RuleProblem::unknown_condition(condition))?;
        let twice = when.cause.replace(cause).is_some();
        return if twice { Err(RuleProblem::repeated_condition("cause")) } else { Ok(()) };
    };
    let bad = || RuleProblem::unreadable_condition(condition);
    let value = value.trim();
    let twice = match name.trim() {
        "exit" => when.exit.replace(parse_codes(value).ok_or_else(bad)?).map(|_| "exit"),
        "signal" => when.signal.replace(parse_signal(value).ok_or_else(bad)?).map(|_| "signal"),
        "rank" => when.rank.replace(value.parse().map(Rank).map_err(|_| bad())?).map(|_| "rank"),
        "node" => when.node.replace(value.parse().map(NodeRank).map_err(|_| bad())?).map(|_| "node"),
        name => return Err(RuleProblem::unknown_condition(name)),
    };
    twice.map_or(Ok(()), |name| Err(RuleProblem::repeated_condition(name)))
}

fn parse_action(word: &str) -> Option<RuleAction> {
    RuleAction::KEYWORDS.into_iter().find(|(known, _)| *known == word).map(|(_, action)| action)
}

/// `3`, `10-19`, and several with `/` between.
fn parse_codes(text: &str) -> Option<ExitCodes> {
    let mut codes = ExitCodes::default();
    for part in text.split('/') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u8, u8) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last {
            return None;
        }
        codes = (first..=last).fold(codes, ExitCodes::with);
    }
    Some(codes)
}

#[cfg(test)]
mod tests;
