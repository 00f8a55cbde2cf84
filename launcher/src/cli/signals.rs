//! Which signals stop the job: `--signals-to-handle`.

use rankrun_core::posix::Signal;

use super::error::CliError;
use super::settings::{Setting, Settings};
use rankrun_core::notice::{Notice, SignalProblem};
use rankrun_core::spec::signal::signal_of_name;
use rankrun_core::spec::{CliFlavor, SignalSpec};

/// Signals that schedulers and users send to a job to tell it something; a launcher that dies of them takes the
/// workers with it.
const FOR_WORKERS: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// What stops the job, and what is passed on to the workers. A name that cannot be handled is left out, aloud.
///
/// # Errors
/// A text that is not UTF-8.
pub(super) fn resolve_signals(
    settings: &Settings<'_>,
    notices: &mut Vec<Notice>,
) -> Result<SignalSpec, CliError> {
    let mut spec = SignalSpec::torchrun();
    if let Some(Setting { origin, value }) = settings.get(&settings.args.torchrun.signals_to_handle) {
        spec.stop.clear();
        for name in value.split(',').map(str::trim) {
            match parse_signal(name) {
                Ok(signal) if spec.stop.contains(&signal) => {}
                Ok(signal) => spec.stop.push(signal),
                Err(problem) => {
                    notices.push(Notice::Signal { origin: origin.clone(), name: name.to_owned(), problem });
                }
            }
        }
        spec.text = value;
    }
    if settings.cli_flavor == CliFlavor::Rankrun {
        spec.forward = FOR_WORKERS.into_iter().filter(|signal| !spec.stop.contains(signal)).collect();
    }
    Ok(spec)
}

/// A signal by Python's name for it, `SIG` included.
fn parse_signal(name: &str) -> Result<Signal, SignalProblem> {
    let Some(signal) = signal_of_name(name) else {
        let real_time = matches!(name, "SIGRTMIN" | "SIGRTMAX");
        return Err(if real_time { SignalProblem::CannotBeHandled } else { SignalProblem::Unknown });
    };
    match signal {
        // The kernel's own, and the signals that tell us of children and of the terminal's size.
        Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGCHLD | Signal::SIGWINCH => {
            Err(SignalProblem::CannotBeHandled)
        }
        signal => Ok(signal),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, interpret};
    use rankrun_core::facts::fake::FakeWorld;

    fn signals(words: &[&str], environment: &[(&str, &str)]) -> (SignalSpec, Vec<String>) {
        let argv: Vec<OsString> = words.iter().chain(&["--no-python", "true"]).map(OsString::from).collect();
        let mut environment = environment.to_vec();
        environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
        let facts = FakeWorld::default().program("/usr/bin/true").facts(&environment);
        let Ok(Command::Launch(launch)) = interpret(&argv, &facts) else { panic!("{words:?} is refused") };
        (launch.spec.signals, launch.notices.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn default_signals_are_those_of_torchrun() {
        assert_eq!(signals(&["torchrun"], &[]), (SignalSpec::torchrun(), vec![]));
        let forward = vec![Signal::SIGUSR1, Signal::SIGUSR2];
        assert_eq!(signals(&["rankrun"], &[]).0, SignalSpec { forward, ..SignalSpec::torchrun() });
    }

    #[test]
    fn signal_list_is_kept_as_written() {
        let text = " SIGTERM , SIGUSR1,SIGTERM";
        let (stop, text) = (vec![Signal::SIGTERM, Signal::SIGUSR1], text.to_owned());
        let forward = vec![Signal::SIGUSR2];
        let spec = SignalSpec { text: text.clone(), stop, forward };
        assert_eq!(signals(&["rankrun", "--signals-to-handle", &text], &[]), (spec.clone(), vec![]));
        let spec = SignalSpec { forward: vec![], ..spec };
        assert_eq!(signals(&["torchrun"], &[("PET_SIGNALS_TO_HANDLE", &text)]), (spec, vec![]));
    }

    #[test]
    fn unhandleable_signals_give_notice_and_are_skipped() {
        let (spec, said) =
            signals(&["torchrun", "--signals-to-handle", "SIGKILL,SIGHUP,TERM,SIGCLD,SIGPOLL,SIGIOT"], &[]);
        assert_eq!(spec.stop, [Signal::SIGHUP, Signal::SIGIO, Signal::SIGABRT]);
        assert_eq!(
            said,
            [
                "`--signals-to-handle` names `SIGKILL`, which a launcher cannot handle",
                "`--signals-to-handle` names `TERM`, which is not a signal; did you mean `SIGTERM`?",
                "`--signals-to-handle` names `SIGCLD`, which a launcher cannot handle",
            ]
        );
        let (spec, said) = signals(&["rankrun"], &[("PET_SIGNALS_TO_HANDLE", "")]);
        assert_eq!((spec.text.as_str(), spec.stop.len(), said.len()), ("", 0, 1));
        assert!(said[0].starts_with("`PET_SIGNALS_TO_HANDLE` names ``, which is not a signal"), "{said:?}");
    }
}
