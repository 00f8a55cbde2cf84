//! The agent's answers to the control socket. The server is `control::server`; the state decides what a stop and a
//! restart mean.

use std::os::fd::BorrowedFd;

use nix::sys::signal::Signal;
use tokio::sync::oneshot;

use rankrun_contract::rank::LocalRank;

use crate::agent::Agent;
use crate::agent::message::{Action, Input};
use crate::control::endpoint::{ControlEndpoint, ControlReply, ControlRequest};
use crate::control::folder::RuntimeFolders;
use crate::control::protocol::Accepted;
use crate::control::snapshot::JobSnapshot;
use crate::exit_code::ExitStatus;
use crate::process::signal_name;
use crate::reporter::job_event_text;
use crate::spec::CliFlavor;

/// The agent's side of the control socket.
#[derive(Default)]
pub(super) struct ControlSocket {
    /// Open once the first workers are started.
    endpoint: Option<ControlEndpoint>,
    has_tried: bool,
    /// A client has asked for a stop: the next such request kills.
    has_stop_request: bool,
}

impl ControlSocket {
    /// Readable when a client has a message.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.as_ref().and_then(ControlEndpoint::as_fd)
    }
}

impl Agent<'_> {
    /// Listens, once the first workers are started: a start does not wait for it. Under the name torchrun there is
    /// no socket. Without a place for it the job runs on.
    pub(super) fn open_control_socket(&mut self) {
        let is_torchrun = self.workers.spec().cli_flavor == CliFlavor::Torchrun;
        if is_torchrun || std::mem::replace(&mut self.control.has_tried, true) {
            return;
        }
        let places = RuntimeFolders::of_environment(self.workers.environment());
        match ControlEndpoint::open(&places, self.workers.job()) {
            Ok(endpoint) => self.control.endpoint = Some(endpoint),
            Err(error) => {
                tracing::info!("no control socket, so `rankrun status` does not see this job: {error}")
            }
        }
    }

    /// Answers the clients; their wishes are inputs of the state.
    pub(super) fn answer_control_requests(&mut self) -> Vec<Input> {
        let requests = self.control.endpoint.as_mut().map(ControlEndpoint::take_requests).unwrap_or_default();
        requests.into_iter().filter_map(|request| self.answer_control_request(request)).collect()
    }

    fn answer_control_request(&mut self, request: ControlRequest) -> Option<Input> {
        match request {
            ControlRequest::Status(reply) => {
                // A client that has gone needs no answer.
                let _ = reply.send(Box::new(self.job_snapshot()));
                None
            }
            ControlRequest::Stop { client, reply } => {
                self.accept(reply);
                self.user_log.print_line(&format!("`rankrun stop`{} asks for a stop", by_pid(client)));
                // A first signal and a first request are one stop: Kubernetes sends SIGTERM after a `preStop` hook.
                let is_second = std::mem::replace(&mut self.control.has_stop_request, true);
                Some(Input::StopRequested { signal: Signal::SIGTERM, is_second })
            }
            ControlRequest::Restart { client, reply } => {
                if let Err(refusal) = self.state.check_restart_request() {
                    let _ = reply.send(Err(refusal));
                    return None;
                }
                self.accept(reply);
                self.user_log.print_line(&format!("`rankrun restart`{} asks for a restart", by_pid(client)));
                Some(Input::RestartRequested)
            }
        }
    }

    fn accept(&self, reply: oneshot::Sender<ControlReply>) {
        let launcher_pid = self.final_report.launcher().as_raw();
        let _ = reply.send(Ok(Accepted { launcher_pid }));
    }

    fn job_snapshot(&self) -> JobSnapshot {
        let summary = self.state.summary();
        let is_live = |local_rank: LocalRank| self.state.is_live(local_rank);
        self.workers.snapshot(&summary, self.final_report.launcher(), self.began.elapsed(), &is_live)
    }

    /// Tells the readers of events what the loop does now.
    pub(super) fn publish(&self, action: &Action) {
        let Some(control) = self.control.endpoint.as_ref().filter(|control| control.has_event_readers())
        else {
            return;
        };
        let generation = self.state.summary().generation;
        match action {
            Action::Emit(event) => {
                let subject = self.workers.event_subject();
                let text = job_event_text::render(event, subject.spec, subject.round).unwrap_or_default();
                control.publish(generation, event.name(), text);
            }
            Action::Start { generation, .. } => {
                control.publish(*generation, "workers_started", "the workers are started".to_owned());
            }
            Action::Finish(end) => {
                let text = match end.status {
                    ExitStatus::Code(code) => format!("the job ends with exit status {code}"),
                    ExitStatus::Signal(signal) => format!("the job ends by {}", signal_name(signal)),
                };
                control.publish(generation, "job_finished", text);
            }
            _ => {}
        }
    }
}

fn by_pid(client: Option<i32>) -> String {
    client.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}
