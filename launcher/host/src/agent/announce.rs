//! What the agent tells of the job's life: each line goes to people on the console and to the readers of `events`. All
//! lines while the job runs take this way, so that neither lacks one that the other has.

use std::error::Error;

use crate::agent::Agent;
use crate::agent::watched_call::WatchedCall;
use crate::reporter::job_event_text;
use crate::reporter::leftovers::{LeftoverProcess, without_commands};
use rankrun_contract::rank::Generation;
use rankrun_core::error_chain::format_chain;
use rankrun_core::exit_code::ExitStatus;
use rankrun_core::job_event::JobEvent;
use rankrun_core::posix::signal_name;

/// A line for people, with its name for programs.
#[derive(Debug)]
pub(super) struct Announcement {
    pub(super) name: &'static str,
    pub(super) text: String,
}

impl Agent<'_> {
    pub(super) fn announce(&self, name: &'static str, text: &str) {
        self.user_log.print_line(text);
        self.publish(name, || text.to_owned());
    }

    /// A line about these processes. Their command lines may hold secrets, and stay on the console.
    pub(super) fn announce_leftovers(
        &self,
        name: &'static str,
        leftovers: Vec<LeftoverProcess>,
        text: impl Fn(&[LeftoverProcess]) -> String,
    ) {
        self.user_log.print_line(&text(&leftovers));
        self.publish(name, || text(&without_commands(leftovers)));
    }

    pub(super) fn announce_event(&self, event: &JobEvent) {
        let subject = self.workers.event_subject();
        self.user_log.event(event, subject);
        self.control.publish(self.generation_of(event), event.name(), || {
            job_event_text::render(event, subject.spec, subject.round).unwrap_or_default()
        });
        if matches!(event, JobEvent::DevicesReassigned { .. }) {
            let lines = self.workers.pending_device_lines();
            lines.iter().for_each(|line| self.announce("device_assigned", &line.to_string()));
        }
    }

    /// An error of the launcher.
    pub(super) fn announce_error(&self, error: &dyn Error, hint: Option<&str>) {
        self.user_log.error(error, hint);
        self.publish("launcher_error", || format_chain(error));
    }

    /// Says that a call takes long, or was given up.
    pub(super) fn announce_call(&self, text: &str) {
        self.announce("waiting_for_call", text);
    }

    /// Gives up a call whose result is not needed.
    pub(super) fn abandon_call<T: Send + 'static>(&self, call: WatchedCall<T>) {
        if let Some(text) = call.abandon() {
            self.announce_call(&text);
        }
    }

    /// For programs: people read the report.
    pub(super) fn publish_end(&self, status: ExitStatus) {
        self.publish("job_finished", || match status {
            ExitStatus::Code(code) => format!("the job ends with exit status {code}"),
            ExitStatus::Signal(signal) => format!("the job ends by {}", signal_name(signal)),
        });
    }

    /// For programs: people see the output of the workers.
    pub(super) fn publish_start(&self) {
        self.publish("workers_started", || "the workers are started".to_owned());
    }

    fn publish(&self, name: &str, text: impl FnOnce() -> String) {
        self.control.publish(self.input_generation, name, text);
    }

    /// The generation that the event is about: a restart is about the next one.
    const fn generation_of(&self, event: &JobEvent) -> Generation {
        match event {
            JobEvent::Restarting { .. } | JobEvent::RestartedByRequest => self.state.generation(),
            _ => self.input_generation,
        }
    }
}
