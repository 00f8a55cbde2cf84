//! torchrun's names of the program that the workers run; its log, its events and its report each use another one.
//! Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rankrun_core::facts::Facts;
use rankrun_core::spec::{Entrypoint, LaunchSpec};

/// The function that torchrun runs a script by under `--run-path`.
const RUN_PATH: &str = "run_script_path";

/// The value of `PYTHON_EXEC`, if it differs from the Python that started the launcher or stands beside it. Like
/// torchrun, this compares the names only; `argv0` is the launcher's own.
#[must_use]
pub fn foreign_python(argv0: &OsStr, facts: &Facts) -> Option<OsString> {
    let python = facts.filled_variable("PYTHON_EXEC")?;
    if let Some(own) = facts.calling_python() {
        return (own.as_os_str() != python).then(|| python.to_owned());
    }
    let launcher =
        if argv0.as_bytes().contains(&b'/') { PathBuf::from(argv0) } else { facts.find_in_path(argv0)? };
    let beside = ["python", "python3"].map(|name| facts.absolute(&launcher).with_file_name(name));
    let is_foreign = beside.iter().any(|python| facts.is_executable(python))
        && !beside.iter().any(|beside| beside.as_os_str() == python);
    is_foreign.then(|| python.to_owned())
}

/// The title of the failure report: the script, module or program, as it was typed. `foreign_python` is a
/// `PYTHON_EXEC` that is not the Python beside the launcher: torchrun names that one instead.
#[must_use]
pub fn title(spec: &LaunchSpec, foreign_python: Option<&OsStr>) -> String {
    match (&spec.entrypoint, foreign_python) {
        (Entrypoint::RunPath { .. }, _) => RUN_PATH.to_owned(),
        (Entrypoint::Program { name, .. }, _) => text(name),
        (Entrypoint::Script { .. } | Entrypoint::Module { .. }, Some(python)) => text(python),
        (Entrypoint::Script { script: what, .. } | Entrypoint::Module { module: what, .. }, None) => {
            first_word(what, &spec.args)
        }
    }
}

/// The line about the first failure ends with this.
#[must_use]
pub(crate) fn in_log_line(entrypoint: &Entrypoint) -> String {
    match entrypoint {
        Entrypoint::RunPath { .. } => format!("of fn: {RUN_PATH} (start_method: spawn)"),
        Entrypoint::Script { python, .. } | Entrypoint::Module { python, .. } => {
            format!("of binary: {}", python.display())
        }
        Entrypoint::Program { name, .. } => format!("of binary: {}", text(name)),
    }
}

/// The `entry_point` of an event.
#[must_use]
pub(crate) fn in_events(entrypoint: &Entrypoint) -> String {
    let base = |path: &Path| path.file_name().map(text).unwrap_or_default();
    match entrypoint {
        Entrypoint::RunPath { .. } => RUN_PATH.to_owned(),
        Entrypoint::Script { python, .. } | Entrypoint::Module { python, .. } => base(python),
        Entrypoint::Program { name, .. } => base(Path::new(name)),
    }
}

/// torchrun takes the first word behind the interpreter that does not begin with a hyphen.
fn first_word(what: &OsStr, args: &[OsString]) -> String {
    let args = [what].into_iter().chain(args.iter().map(OsString::as_os_str));
    args.into_iter().find(|argument| !argument.as_bytes().starts_with(b"-")).map(text).unwrap_or_default()
}

fn text(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::facts::fake::FakeWorld;
    use rankrun_core::spec::fake::example;

    #[test]
    fn entrypoint_names_match_torchrun_per_place() {
        let python = || "/venv/bin/python".into();
        for (entrypoint, expected) in [
            (
                Entrypoint::Script { python: python(), script: "a/train.py".into() },
                ["a/train.py", "of binary: /venv/bin/python", "python"],
            ),
            (
                Entrypoint::Module { python: python(), module: "pkg.train".into() },
                ["pkg.train", "of binary: /venv/bin/python", "python"],
            ),
            (
                Entrypoint::Program { path: "/usr/bin/sh".into(), name: "./sh".into() },
                ["./sh", "of binary: ./sh", "sh"],
            ),
            (
                Entrypoint::RunPath { python: python(), script: "train.py".into() },
                ["run_script_path", "of fn: run_script_path (start_method: spawn)", "run_script_path"],
            ),
        ] {
            let is_python = matches!(entrypoint, Entrypoint::Script { .. } | Entrypoint::Module { .. });
            let spec = rankrun_core::spec::LaunchSpec { entrypoint, ..example() };
            let names = [title(&spec, None), in_log_line(&spec.entrypoint), in_events(&spec.entrypoint)];
            assert_eq!(names, expected);
            let foreign = title(&spec, Some(OsStr::new("python3.12")));
            assert_eq!(foreign == "python3.12", is_python, "{foreign}");
        }
    }

    #[test]
    fn foreign_python_is_one_not_beside_launcher() {
        let foreign = |argv0: &str, python: Option<&str>, world: FakeWorld| {
            let python = python.map(|python| ("PYTHON_EXEC".into(), python.into()));
            let path = [("PATH".into(), "/venv/bin".into())];
            let facts = Facts::new(path.into_iter().chain(python).collect(), Box::new(world));
            foreign_python(OsStr::new(argv0), &facts)
        };
        let bare = || FakeWorld::default().program("/venv/bin/torchrun");
        let venv = || bare().program("/venv/bin/python");
        assert_eq!(foreign("torchrun", Some("/usr/bin/python3"), venv()), Some("/usr/bin/python3".into()));
        assert_eq!(foreign("/venv/bin/torchrun", Some("python"), venv()), Some("python".into()));
        assert_eq!(foreign("torchrun", Some("/venv/bin/python3"), venv()), None, "the one beside us");
        assert_eq!(foreign("torchrun", Some("/usr/bin/python3"), bare()), None, "there is none beside us");
        assert_eq!(foreign("torchrun", None, venv()), None);
    }

    #[test]
    fn python_that_started_shim_is_not_foreign() {
        for (python, foreign) in
            [("/env/python", None), ("/usr/bin/python3", Some("/usr/bin/python3".into()))]
        {
            let facts = FakeWorld::default()
                .facts(&[("RANKRUN_SHIM_PYTHON", "/env/python"), ("PYTHON_EXEC", python)]);
            assert_eq!(foreign_python(OsStr::new("/lib/torchrun"), &facts), foreign);
        }
    }

    #[test]
    fn title_skips_script_that_looks_like_option() {
        let spec = rankrun_core::spec::LaunchSpec {
            entrypoint: Entrypoint::Script { python: "/bin/python".into(), script: "-x.py".into() },
            args: vec!["--lr".into(), "0.1".into()],
            ..example()
        };
        assert_eq!(title(&spec, None), "0.1");
    }
}
