//! What is told when the job is over: the report to people, and the error file to whoever started the launcher.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use rankrun_contract::report::{ErrorFile, ErrorReport, MessageForm};

use crate::agent::failure::Failure;
use crate::agent::message::JobEnd;
use crate::agent::workers::Workers;
use crate::exit_code::ExitStatus;
use crate::process::Exit;
use crate::reporter::voice::Voice;
use crate::reporter::{parent_file, program, summary, torch_log, torch_report};
use crate::spec::{LaunchSpec, Persona};

/// What the last words need that the job did not.
#[derive(Debug)]
pub(super) struct LastWords {
    persona: Persona,
    /// torchrun's title of the failure report.
    title: String,
    parent_file: Option<PathBuf>,
    /// The process that the user started.
    launcher: Pid,
}

impl LastWords {
    /// For one launch; `foreign_python` is a `PYTHON_EXEC` that is not the Python beside the launcher.
    pub(super) fn new(spec: &LaunchSpec, foreign_python: Option<OsString>, launcher: Pid) -> Self {
        Self {
            persona: spec.persona,
            title: program::title(spec, foreign_python.as_deref()),
            parent_file: spec.parent_error_file.clone(),
            launcher,
        }
    }

    /// The process that the user started.
    pub(super) const fn launcher(&self) -> Pid {
        self.launcher
    }

    /// What the job died of, to people. Where torchrun shows the way through its own source, we show our card.
    pub(super) fn report(&self, end: &JobEnd, workers: &Workers, voice: &Voice) {
        match (&end.failure, end.stopped_by, self.persona) {
            (Some(failure), ..) => self.report_failure(failure, workers, voice),
            (None, Some(signal), Persona::Torchrun) if matches!(end.status, ExitStatus::Code(_)) => {
                voice.print(&torch_report::of_signal(signal, self.launcher));
            }
            (None, ..) => {}
        }
    }

    fn report_failure(&self, failure: &Failure, workers: &Workers, voice: &Voice) {
        let evidence = workers.evidence(failure);
        let mut card = evidence.card(failure);
        let hint = summary::hint(&card);
        if self.persona == Persona::Torchrun {
            // Told once: torchrun's report shows it.
            card.report = None;
        }
        voice.failure(&summary::render(&card), hint.as_deref());
        if self.persona == Persona::Torchrun {
            let report = evidence.torch_report(failure, self.title.clone());
            voice.print(&torch_report::render(&report));
        }
    }

    /// Tells whoever started us by the error file that they asked for. It is no failure of the job that they cannot
    /// be told.
    pub(super) fn hand_on(
        &self,
        end: &JobEnd,
        died_of: Option<&ErrorReport>,
        workers: &Workers,
        voice: &Voice,
    ) {
        let cause = end.failure.as_ref().map(|failure| failure.first);
        let told = cause.and_then(|cause| Some((workers.error_file(cause.local_rank)?, cause.exit)));
        if let Some(((file, path), _)) = &told
            && file.form == MessageForm::Text
        {
            voice.log(&[torch_log::no_place_for_code(&path.display().to_string())]);
        }
        match (&self.parent_file, told, died_of) {
            (Some(path), Some(((file, _), exit)), _) => pass_on(path, file, exit, voice),
            (Some(path), None, Some(died_of)) => record(path, died_of, voice),
            (None, Some(((_, path), _)), _) => {
                voice.log(&[torch_log::no_parent_file(&path.display().to_string())]);
            }
            (Some(_), None, None) | (None, None, _) => {}
        }
    }
}

/// Writes what the launcher itself died of.
pub(super) fn record(path: &Path, died_of: &ErrorReport, voice: &Voice) {
    if let Err(error) = parent_file::record(path, died_of) {
        voice.say(&error.to_string());
    }
}

fn pass_on(path: &Path, file: &ErrorFile, exit: Exit, voice: &Voice) {
    let code = match exit {
        Exit::Code(code) => code,
        Exit::Signal { number, .. } => -number,
    };
    match parent_file::replace(path, &file.with_exit_code(code)) {
        Ok(None) => {}
        Ok(Some(old)) => voice.replaced(&path.display().to_string(), old.trim_end()),
        Err(error) => voice.say(&error.to_string()),
    }
}
