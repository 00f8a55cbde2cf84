//! Which processes of a worker get the signal that stops it. Pure: the agent looks at the program before the start, and at
//! the image of the worker's process when it is to be stopped.
//!
//! A training program that gets the signal alone can save its work: a signal to its process group would end its data
//! loaders, and it would fail at its next batch. A shell or another wrapper in front of the program passes no signal on,
//! so there the whole group gets it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rankrun_contract::rank::Rank;

use crate::spec::stop::StopTarget;
use crate::spec::{Entrypoint, LaunchSpec, is_python};

/// The processes of a worker that a signal is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalScope {
    /// The worker's process.
    Rank,
    /// Its process group.
    Group,
    /// Its process group. The worker's process may end before the training program that it wraps.
    GroupOfWrapper,
}

/// The program of the workers, as its file shows it before the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProgramFile {
    /// A program with the runtime for Rust, by its path without links.
    RustWorker(PathBuf),
    /// A command whose first line names Python. It may be a wrapper, as `conda` is.
    PythonCommand,
    /// Another file, also Python itself; or one that was not looked at.
    #[default]
    Other,
}

impl ProgramFile {
    /// Whether the answer of [`signal_scope`] depends on the file of the program.
    #[must_use]
    pub fn is_needed(spec: &LaunchSpec) -> bool {
        depends_on_image(spec) && matches!(spec.entrypoint, Entrypoint::Program { .. })
    }

    /// A script, by the words of its first line.
    #[must_use]
    pub fn of_script(first_line: &[u8]) -> Self {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
        let mut words = first_line.split(is_space).map(|word| Path::new(OsStr::from_bytes(word)));
        if words.any(is_python) { Self::PythonCommand } else { Self::Other }
    }
}

/// The processes of a worker that get a signal to stop. `image` is the file that its process executes. A rank with a
/// wrapper is never signalled alone by `auto`: a wrapper in Python would look like the program.
#[must_use]
pub fn signal_scope(
    spec: &LaunchSpec,
    rank: Rank,
    program: &ProgramFile,
    image: Option<&Path>,
) -> SignalScope {
    let is_training_program = |image| match program {
        ProgramFile::RustWorker(file) if file == image => true,
        ProgramFile::PythonCommand => false,
        ProgramFile::RustWorker(_) | ProgramFile::Other => is_python(image),
    };
    match spec.options.stop_target(spec.cli_flavor) {
        StopTarget::Rank => SignalScope::Rank,
        StopTarget::Group => SignalScope::Group,
        StopTarget::Auto if spec.wrappers_of(rank).next().is_some() => SignalScope::GroupOfWrapper,
        StopTarget::Auto if image.is_some_and(is_training_program) => SignalScope::Rank,
        StopTarget::Auto => SignalScope::GroupOfWrapper,
    }
}

/// Whether the images of the workers decide.
fn depends_on_image(spec: &LaunchSpec) -> bool {
    spec.options.stop_target(spec.cli_flavor) == StopTarget::Auto
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::CliFlavor;
    use crate::spec::fake::example;
    use crate::spec::wrap::Wrapper;
    use SignalScope::{Group, GroupOfWrapper, Rank};
    use rankrun_contract::rank::Rank as GlobalRank;

    fn scope(
        target: Option<StopTarget>,
        cli_flavor: CliFlavor,
        program: &ProgramFile,
        image: &str,
    ) -> SignalScope {
        let mut spec = example();
        spec.cli_flavor = cli_flavor;
        spec.options.stop_signal_to = target;
        let image = Some(Path::new(image)).filter(|image| !image.as_os_str().is_empty());
        signal_scope(&spec, GlobalRank(0), program, image)
    }

    #[test]
    fn auto_signals_the_group_of_a_wrapped_rank() {
        let command = "1:env".parse().unwrap();
        let wrapper = Wrapper { command, path: "/usr/bin/env".into(), host: String::new() };
        let mut spec = LaunchSpec { wrappers: vec![wrapper], ..example() };
        let scope = |spec: &_, rank| {
            signal_scope(spec, GlobalRank(rank), &ProgramFile::Other, Some(Path::new("/usr/bin/python3")))
        };
        assert_eq!([0, 1].map(|rank| scope(&spec, rank)), [SignalScope::Rank, SignalScope::GroupOfWrapper]);
        spec.options.stop_signal_to = Some(StopTarget::Rank);
        assert_eq!(scope(&spec, 1), SignalScope::Rank);
    }

    #[test]
    fn auto_signals_training_program_alone_and_wrapper_with_its_group() {
        let rust = ProgramFile::RustWorker("/job/train".into());
        let command = ProgramFile::PythonCommand;
        let other = ProgramFile::Other;
        for (program, image, expected) in [
            (&other, "/usr/bin/python3.11", Rank),
            (&other, "/opt/conda/bin/python3.13t", Rank),
            (&other, "/opt/pypy/bin/pypy3.10", Rank),
            (&other, "/usr/bin/python3.11 (deleted)", Rank),
            (&other, "/usr/bin/dash", GroupOfWrapper),
            (&other, "/usr/bin/nsys", GroupOfWrapper),
            (&other, "/opt/python3/bin/wrapper", GroupOfWrapper),
            (&other, "", GroupOfWrapper),
            (&command, "/usr/bin/python3.11", GroupOfWrapper),
            (&rust, "/job/train", Rank),
            (&rust, "/job/other", GroupOfWrapper),
            (&rust, "/usr/bin/python3.11", Rank),
        ] {
            assert_eq!(scope(None, CliFlavor::Rankrun, program, image), expected, "{image}");
            assert_eq!(scope(None, CliFlavor::Torchrun, program, image), Group, "{image}");
            for flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
                assert_eq!(scope(Some(StopTarget::Auto), flavor, program, image), expected, "{image}");
                assert_eq!(scope(Some(StopTarget::Rank), flavor, program, image), Rank);
                assert_eq!(scope(Some(StopTarget::Group), flavor, program, image), Group);
            }
        }
    }

    #[test]
    fn first_line_tells_command_written_in_python() {
        for line in [
            "/usr/bin/python3",
            "/opt/conda/bin/python -E",
            "/usr/bin/env python3",
            "/usr/bin/env -S pypy3 -u",
        ] {
            assert_eq!(ProgramFile::of_script(line.as_bytes()), ProgramFile::PythonCommand, "{line}");
        }
        for line in ["/bin/sh", "/usr/bin/env bash", "", "/opt/python/bin/sh"] {
            assert_eq!(ProgramFile::of_script(line.as_bytes()), ProgramFile::Other, "{line}");
        }
    }
}
