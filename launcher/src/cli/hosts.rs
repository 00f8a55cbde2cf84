//! `--hosts` and `--hostfile`: a launch on several hosts. The settings of this launch become the words of each host's own;
//! the host's launcher resolves them there, with its devices and files.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use super::error::{CliError, Origin, SettingError};
use super::exclude_node::{NodeNames, is_own_name};
use super::option::LaunchOption;
use super::scheduled_job::ScheduledJob;
use super::settings::{CommandLine, Setting, Settings, WrittenOption};
use super::signals::resolve_signals;
use super::values::time;
use rankrun_core::facts::Facts;
use rankrun_core::shell::split::split;
use rankrun_core::ssh::hosts::{Host, HostProblem, is_loopback, parse_host_list, parse_hostfile};
use rankrun_core::ssh::plan::{FleetNode, FleetRendezvous, FleetSpec};

/// What is done here. A host's launcher gets none of these options.
const OF_LAUNCHER: [&str; 5] = ["hosts", "hostfile", "export", "ssh", "exclude-node"];
/// What the list of hosts says: it is refused beside it, and a variable of it has no effect.
const SAID_BY_HOSTS: [&str; 5] = ["nnodes", "node-rank", "standalone", "rdzv-endpoint", "local-addr"];
/// They have their own place in the plan.
const OF_PLAN: [&str; 2] = ["master-addr", "master-port"];
const DEFAULT_SSH: &str = "ssh";
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// More than any such file has.
const MAX_HOSTFILE: u64 = 1 << 20;

/// The launch on other hosts, if there are any.
///
/// # Errors
/// The hosts or the variables for them cannot be read, or another setting says the same as they do.
pub(super) fn resolve_fleet(
    line: &CommandLine,
    settings: &Settings<'_>,
) -> Result<Option<FleetSpec>, CliError> {
    let Some(hosts) = resolve_hosts(settings)? else {
        refuse_without_hosts(settings)?;
        return Ok(None);
    };
    refuse_said_by_hosts(settings)?;
    let hosts = without_excluded(settings, hosts)?;
    let is_counted = ["nproc-per-node", "total-workers"].iter().any(|name| typed(settings, name).is_some());
    let node = |host: Host| {
        let slots = host.slots.filter(|_| !is_counted);
        let words = slots.map(|slots| format!("--nproc-per-node={slots}")).into_iter().collect();
        FleetNode { host, words, environment: Vec::new() }
    };
    let nodes: Vec<FleetNode> = hosts.into_iter().map(node).collect();
    let program = std::iter::once(&line.entrypoint).chain(&line.arguments);
    let limit = time(settings, &settings.args.join_timeout).map_or(CONNECT_LIMIT, |limit| limit.value);
    Ok(Some(FleetSpec {
        ssh: resolve_ssh(settings)?,
        launcher: launcher_path(settings.facts),
        directory: working_folder(settings.facts)?,
        environment: resolve_exports(settings)?,
        options: words_for_hosts(settings, nodes.len() > 1)?,
        program: program.map(|word| text(word, "the command line")).collect::<Result<_, _>>()?,
        rendezvous: resolve_rendezvous(settings)?,
        connect_limit: limit,
        // What cannot be handled is said by the launchers of the hosts.
        signals: resolve_signals(settings, &mut Vec::new())?,
        nodes,
    }))
}

/// What the command line itself says of an option.
fn typed(settings: &Settings<'_>, name: &str) -> Option<Setting<OsString>> {
    settings.find(name).filter(|found| matches!(found.origin, Origin::Option(_)))
}

/// Whether other hosts are asked for.
pub(super) fn names_hosts(settings: &Settings<'_>) -> Option<Origin> {
    let hosts = settings.find("hosts").or_else(|| settings.find("hostfile"));
    hosts.map(|setting| setting.origin)
}

/// Refuses hosts where each task of a step would start the job on all of them.
///
/// # Errors
/// Hosts are given, and this launcher is one of several tasks.
pub(super) fn refuse_in_step(given: &[WrittenOption], job: &ScheduledJob) -> Result<(), CliError> {
    let is_of_hosts = |written: &&WrittenOption| ["hosts", "hostfile"].contains(&written.option.long_name());
    let Some(hosts) = given.iter().find(is_of_hosts) else { return Ok(()) };
    let Setting { origin, value } = &job.tasks;
    let problem =
        format!("is given, and {origin} says that this is one of {value} tasks: each would start the job");
    let hint = "start it from the batch script, or leave the hosts out: the tasks are one job";
    Err(SettingError::of_origin(hosts.setting.origin.clone(), problem, hint).into())
}

fn resolve_hosts(settings: &Settings<'_>) -> Result<Option<Vec<Host>>, CliError> {
    let list = settings.get(&settings.args.hosts);
    let file = settings.get(&settings.args.hostfile);
    match (list, file) {
        (Some(list), Some(file)) => Err(SettingError::exclusive(list.origin, &file.origin).into()),
        (Some(Setting { origin, value }), None) => parse_host_list(&value).map(Some).map_err(|problem| {
            SettingError::of_value(origin, value, format!("which {problem}"), problem.hint()).into()
        }),
        (None, Some(file)) => read_hostfile(settings.facts, &file).map(Some),
        (None, None) => Ok(None),
    }
}

fn without_excluded(settings: &Settings<'_>, mut hosts: Vec<Host>) -> Result<Vec<Host>, CliError> {
    let Some(Setting { origin, value: NodeNames(names) }) = settings.get(&settings.args.exclude_node) else {
        return Ok(hosts);
    };
    hosts.retain(|host| !names.iter().any(|name| is_own_name(name, host.name())));
    if hosts.is_empty() {
        let problem = "excludes every host of the job";
        return Err(SettingError::of_origin(origin, problem, "leave one of them out").into());
    }
    Ok(hosts)
}

fn read_hostfile(
    facts: &Facts,
    Setting { origin, value }: &Setting<OsString>,
) -> Result<Vec<Host>, CliError> {
    let shown = Path::new(value).display();
    let path = facts.absolute(Path::new(value));
    let bytes = facts.world().read_file(&path, MAX_HOSTFILE).map_err(|error| {
        let hint = "name a file with a line `NAME slots=N` for each host";
        SettingError::of_value(
            origin.clone(),
            shown.to_string(),
            format!("which cannot be read: {error}"),
            hint,
        )
    })?;
    let text = String::from_utf8_lossy(&bytes);
    parse_hostfile(&text).map_err(|(line, problem): (Option<usize>, HostProblem)| {
        let place = line.map_or(String::new(), |line| format!(", line {line}"));
        CliError::refused(format!("the host file `{shown}`{place} {problem}"), problem.hint())
    })
}

/// Options that say how to start on other hosts, where there are none.
fn refuse_without_hosts(settings: &Settings<'_>) -> Result<(), CliError> {
    for name in ["export", "ssh"] {
        if let Some(found) = settings.find(name) {
            let hint = "add `--hosts` or `--hostfile`, or leave it out";
            let problem = "is given, but no host is";
            return Err(SettingError::of_origin(found.origin, problem, hint).into());
        }
    }
    Ok(())
}

fn refuse_said_by_hosts(settings: &Settings<'_>) -> Result<(), CliError> {
    for name in SAID_BY_HOSTS {
        if let (Some(found), Some(hosts)) = (typed(settings, name), names_hosts(settings)) {
            let problem = format!("is given, and {hosts} says it for each node");
            return Err(SettingError::of_origin(found.origin, problem, "leave it out").into());
        }
    }
    if let Some(found) = typed(settings, "exclude-node-after") {
        let problem = "is given, and all hosts of the list belong to the job: none can leave it";
        let hint = "leave it out, or start each node by itself with `--nnodes MIN:MAX`";
        return Err(SettingError::of_origin(found.origin, problem, hint).into());
    }
    match settings.find("leave-out") {
        Some(found) => {
            let problem = "needs a terminal of its host, and the hosts of ssh have none";
            Err(SettingError::of_origin(found.origin, problem, "start the launcher on that host by hand")
                .into())
        }
        None => Ok(()),
    }
}

/// Every option of the command line and of variables. The file of `--config` is each host's own to read.
fn words_for_hosts(settings: &Settings<'_>, are_several: bool) -> Result<Vec<String>, CliError> {
    let is_of_hosts = |written: &&WrittenOption| {
        let name = written.option.long_name();
        // A launch of one node refuses it; here it is the time for the host to answer.
        let is_idle = name == "join-timeout" && !are_several;
        !is_idle && !OF_LAUNCHER.contains(&name) && !SAID_BY_HOSTS.contains(&name) && !OF_PLAN.contains(&name)
    };
    // A repeated option would have both.
    let counts = |written: &&WrittenOption| match &written.setting.origin {
        Origin::Option(_) => true,
        Origin::Variable(_) => typed(settings, written.option.long_name()).is_none(),
        Origin::File(_) => false,
    };
    let given = settings.given.iter().rev().filter(is_of_hosts).filter(counts);
    let words = given.filter(|written| !written.is_off()).map(|written| {
        let origin = written.setting.origin.clone();
        let word = written.word();
        word.into_string().map_err(|word| SettingError::not_unicode(origin, &word.to_string_lossy()).into())
    });
    let mut words = words.collect::<Result<Vec<String>, CliError>>()?;
    // One report of a failure is enough for one reader.
    if are_several && settings.find("log-from").is_none() {
        words.push("--log-from=first-failure".to_owned());
    }
    Ok(words)
}

fn resolve_rendezvous(settings: &Settings<'_>) -> Result<FleetRendezvous, CliError> {
    let torchrun = &settings.args.torchrun;
    let is_typed = |origin: &Origin| matches!(origin, Origin::Option(_));
    let address = settings.get(&torchrun.master_addr).filter(|found| is_typed(&found.origin));
    if let Some(Setting { origin, value }) = address.as_ref().filter(|found| is_loopback(&found.value)) {
        let problem = "which each host takes for itself";
        let hint = "name the first host as the others reach it, or leave the option out";
        return Err(SettingError::of_value(origin.clone(), value, problem, hint).into());
    }
    let port = match settings.get(&torchrun.master_port).filter(|found| is_typed(&found.origin)) {
        Some(Setting { origin, value }) => {
            let port = u16::try_from(value).ok().filter(|port| *port > 0);
            let error = || {
                let hint = "leave it out: a free port of the first host is taken";
                SettingError::of_value(origin, value, "which is not a port from 1 to 65535", hint)
            };
            Some(port.ok_or_else(error)?)
        }
        None => None,
    };
    let run_id = settings.facts.world().fresh_uuid().to_string();
    Ok(FleetRendezvous {
        is_c10d: settings.get(&torchrun.rdzv_backend).is_some_and(|backend| backend.value == "c10d"),
        address: address.map(|found| found.value),
        port,
        run_id: settings.find("rdzv-id").is_none().then_some(run_id),
    })
}

fn resolve_ssh(settings: &Settings<'_>) -> Result<Vec<String>, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.ssh) else {
        return Ok(vec![DEFAULT_SSH.to_owned()]);
    };
    let refused = |problem: String| {
        let hint = "write the client and its options, as in `ssh -p 2222`";
        SettingError::of_value(origin.clone(), &value, problem, hint)
    };
    let words = split(&value).map_err(|error| refused(format!("and {error}")))?.words;
    if words.is_empty() { Err(refused("which names no program".to_owned()).into()) } else { Ok(words) }
}

/// `--export A,B=VALUE`: a name has the value of this environment; behind `=` the rest of the text is the value.
fn resolve_exports(settings: &Settings<'_>) -> Result<Vec<(String, String)>, CliError> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for Setting { origin, value } in settings.every("export") {
        let list = text(value, "--export")?;
        for (name, value) in parse_exports(&list) {
            let refused = |problem: String, hint: &'static str| {
                SettingError::of_value(origin.clone(), &list, problem, hint)
            };
            if name.is_empty() || name.contains(char::is_whitespace) {
                let hint = "write names with commas between them, or `NAME=VALUE`";
                return Err(refused(format!("where `{name}` is not the name of a variable"), hint).into());
            }
            let value = match value {
                Some(value) => value.to_owned(),
                None => {
                    let value = settings.facts.variable(name).ok_or_else(|| {
                        refused(format!("and `{name}` is not set"), "set it, or write `NAME=VALUE`")
                    })?;
                    text(value, name)?
                }
            };
            variables.retain(|(known, _)| known != name);
            variables.push((name.to_owned(), value));
        }
    }
    Ok(variables)
}

/// Names, and the value of the last one.
fn parse_exports(list: &str) -> Vec<(&str, Option<&str>)> {
    let (names, value) = match list.split_once('=') {
        Some((names, value)) => (names, Some(value)),
        None => (list, None),
    };
    let mut names: Vec<_> = names.split(',').map(|name| (name.trim(), None)).collect();
    if let Some(last) = names.last_mut() {
        last.1 = value;
    }
    names
}

fn working_folder(facts: &Facts) -> Result<String, CliError> {
    let folder = facts.world().working_folder().ok_or_else(|| {
        CliError::refused(
            "the working folder has no path",
            "start the job in a folder that the hosts have too",
        )
    })?;
    text(folder.as_os_str(), "the path of the working folder")
}

/// The path of this program, which the other hosts may have too.
fn launcher_path(facts: &Facts) -> String {
    let path = facts.world().resolve_links(Path::new("/proc/self/exe"));
    path.to_str().filter(|path| *path != "/proc/self/exe").unwrap_or("rankrun").to_owned()
}

fn text(value: &OsStr, what: &str) -> Result<String, CliError> {
    let error = || {
        let message = format!("{what} is not valid UTF-8: `{}`", value.to_string_lossy());
        CliError::refused(message, "write it in UTF-8: it goes to other hosts as text")
    };
    value.to_str().map(str::to_owned).ok_or_else(error)
}

#[cfg(test)]
mod tests;
