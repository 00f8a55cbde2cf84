//! `--wrap`: reads the commands in front of chosen ranks, and finds their programs before anything starts.

use std::ffi::OsStr;

use rankrun_contract::rank::{LocalWorldSize, NodeCount};

use super::error::{CliError, Origin, SettingError};
use super::settings::Settings;
use rankrun_core::spec::wrap::{WrapCommand, WrapError, Wrapper};
use rankrun_host::process::exec_problem::noexec_hint;
use rankrun_host::program::{ProgramProblem, find_program};

/// The wrappers in their order. Without `--total-workers` other nodes count with as many workers as this one.
///
/// # Errors
/// A command that cannot be read or started, or a rank that no worker has.
pub(super) fn resolve_wrappers(
    settings: &Settings<'_>,
    workers: LocalWorldSize,
    nodes: NodeCount,
) -> Result<Vec<Wrapper>, CliError> {
    let total = settings.get(&settings.args.total_workers).and_then(|total| u64::try_from(total.value).ok());
    let ranks = total.unwrap_or_else(|| u64::from(workers.get()) * u64::from(nodes.get()));
    let mut wrappers = Vec::new();
    for setting in settings.every("wrap") {
        let text = setting.value.to_string_lossy();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        // An empty text is refused as a command.
        for line in if lines.is_empty() { vec![""] } else { lines } {
            wrappers.push(resolve_wrapper(settings, &setting.origin, line, ranks)?);
        }
    }
    Ok(wrappers)
}

fn resolve_wrapper(
    settings: &Settings<'_>,
    origin: &Origin,
    line: &str,
    ranks: u64,
) -> Result<Wrapper, SettingError> {
    let refused = |problem: String, hint: String| SettingError::of_value(origin.clone(), line, problem, hint);
    let command: WrapCommand =
        line.parse().map_err(|error: WrapError| refused(error.to_string(), error.hint().to_owned()))?;
    if let Some(rank) = command.ranks.highest().filter(|rank| u64::from(*rank) >= ranks) {
        let problem = format!("and the job has no rank {rank}: the ranks are 0 to {}", ranks - 1);
        return Err(refused(
            problem,
            "ranks count from 0 over all nodes; `all` names each of them".to_owned(),
        ));
    }
    let program = command.words.first().map(String::as_str).unwrap_or_default();
    let path = find_program(OsStr::new(program), settings.facts)
        .map_err(|problem| refused(format!("and its program `{program}` {problem}"), hint_for(&problem)))?;
    let host = settings.facts.world().host_name();
    Ok(Wrapper { command, path, host })
}

fn hint_for(problem: &ProgramProblem) -> String {
    match problem {
        ProgramProblem::Missing { .. } => "check the path".to_owned(),
        ProgramProblem::NotInPath { .. } => "install it, load its module, or give its path".to_owned(),
        ProgramProblem::Directory => "name a program".to_owned(),
        ProgramProblem::NotExecutable { path } => format!("chmod +x {}", path.display()),
        ProgramProblem::NoExecMount { .. } => noexec_hint().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use rankrun_contract::rank::{LocalRank, Rank};

    use super::*;
    use crate::cli::{Command, interpret};
    use rankrun_core::facts::fake::FakeWorld;

    fn wrappers(words: &[&str], environment: &[(&str, &str)]) -> Result<Vec<Wrapper>, String> {
        let world = FakeWorld::default().file("/job/x.py", b"impo").file("/job/plain", b"");
        let world = world.program("/usr/bin/python3").program("/usr/bin/nsys").program("/job/gdb.sh");
        let mut environment = environment.to_vec();
        environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
        let words = ["rankrun"].iter().chain(words).chain(&["x.py"]);
        let argv: Vec<OsString> = words.map(OsString::from).collect();
        match interpret(&argv, &world.facts(&environment)) {
            Ok(Command::Launch(launch)) => Ok(launch.spec.wrappers),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn repeated_wrap_options_and_lines_of_variable_all_count() {
        let typed = wrappers(&["-n", "2", "--wrap", "0:nsys -o %h", "--wrap=all:./gdb.sh"], &[]).unwrap();
        let lines = [("RANKRUN_WRAP", "\n0:nsys -o %h\n all:./gdb.sh\n")];
        assert_eq!(wrappers(&["-n2"], &lines).unwrap(), typed);
        let paths: Vec<_> = typed.iter().map(|wrapper| wrapper.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/usr/bin/nsys", "./gdb.sh"]);
        assert_eq!(typed[0].argv(Rank(0), LocalRank(0)), ["nsys", "-o", "here"]);
        assert_eq!(wrappers(&["--wrap", "0:nsys"], &lines).unwrap().len(), 1);
    }

    #[test]
    fn wrap_of_missing_rank_or_program_is_refused() {
        let elastic = ["-n", "2", "--rdzv-backend", "c10d", "--nnodes", "1:3", "--wrap"];
        assert_eq!(wrappers(&[&elastic[..], &["5:nsys"]].concat(), &[]).unwrap().len(), 1);
        for (words, error) in [
            (&["--wrap", ""][..], "`--wrap` is empty, which is not RANKS:COMMAND"),
            (&["--wrap", "1:nsys"], "`--wrap` is `1:nsys`, and the job has no rank 1: the ranks are 0 to 0"),
            (&[&elastic[..], &["0-6:nsys"]].concat(), "and the job has no rank 6: the ranks are 0 to 5"),
            (
                &["--total-workers", "3", "--nnodes", "2", "--wrap", "2-3:nsys"],
                "and the job has no rank 3: the ranks are 0 to 2",
            ),
            (&["--wrap", "0:perf"], "`--wrap` is `0:perf`, and its program `perf` is not in PATH"),
            (&["--wrap", "0:./perf"], "and its program `./perf` does not exist"),
            (&["--wrap", "0:./plain"], "and its program `./plain` has no run permission"),
            (&["--wrap", "0:nsys -o %p"], "and `%p` is not a placeholder"),
        ] {
            let message = wrappers(words, &[]).unwrap_err();
            assert!(message.contains(error), "{words:?}: {message}");
        }
    }
}
