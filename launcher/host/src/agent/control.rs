//! The agent's answers to the control socket. The server is `control::server`; the state decides what a stop and a
//! restart mean.
#![expect(clippy::disallowed_methods, reason = "the end of the job waits with a limit")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use rankrun_contract::rank::{Generation, LocalRank};

use crate::agent::Agent;
use crate::agent::inputs::wait_for_inputs;
use crate::blocking::{BlockingCall, CallProgress};
use crate::control::endpoint::{ControlEndpoint, ControlReply, ControlRequest};
use crate::control::folder::{FolderError, RuntimeFolders};
use crate::control::protocol::Accepted;
use crate::control::snapshot::JobSnapshot;
use crate::stacks::StackTarget;
use rankrun_core::agent::message::Input;
use rankrun_core::spec::CliFlavor;

/// The name of the thread for calls on the folder.
const THREAD: &str = "control-folder";
/// The end of the job waits no longer for the file system of the folder.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(1);

/// The agent's side of the control socket.
#[derive(Default)]
pub(super) struct ControlSocket {
    socket: SocketState,
    /// The refused folder that the user was told of: each start tries again.
    reported_refusal: Option<String>,
    /// Each belongs to an [`Input::RestartRequested`] that the state has not seen.
    restart_requests: VecDeque<RestartRequest>,
}

/// A client's request to restart, until it is answered.
struct RestartRequest {
    client: Option<i32>,
    reply: oneshot::Sender<ControlReply>,
}

#[derive(Default)]
enum SocketState {
    #[default]
    Closed,
    /// On another thread: the file system of the folder may not answer.
    Opening(BlockingCall<Result<ControlEndpoint, FolderError>>),
    Open(ControlEndpoint),
}

impl ControlSocket {
    /// Readable when a client has a message, or the socket is open.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.socket {
            SocketState::Closed => None,
            SocketState::Opening(call) => Some(call.as_fd()),
            SocketState::Open(endpoint) => endpoint.as_fd(),
        }
    }

    fn endpoint(&mut self) -> Option<&mut ControlEndpoint> {
        if let SocketState::Opening(call) = &self.socket {
            match call.progress() {
                CallProgress::Running => return None,
                CallProgress::Returned(Ok(endpoint)) => self.socket = SocketState::Open(endpoint),
                CallProgress::Returned(Err(error)) => self.fail(&error),
                CallProgress::Lost => self.fail(&io::Error::other("its thread has panicked").into()),
            }
        }
        if let SocketState::Open(endpoint) = &mut self.socket { Some(endpoint) } else { None }
    }

    /// The job runs on without a socket.
    fn fail(&mut self, error: &FolderError) {
        self.socket = SocketState::Closed;
        let text = format!("no control socket, so `rankrun status` does not see this job: {error}");
        match error {
            // Of concern to the user in any case: another user may be at work.
            FolderError::Refused(_) if self.reported_refusal.as_ref() != Some(&text) => {
                tracing::warn!("{text}");
                self.reported_refusal = Some(text);
            }
            FolderError::Refused(_) | FolderError::Io(_) => tracing::info!("{text}"),
        }
    }

    /// Sends an event to the clients that read events.
    pub(super) fn publish(&self, generation: Generation, name: &str, text: impl FnOnce() -> String) {
        let SocketState::Open(endpoint) = &self.socket else { return };
        if endpoint.event_readers() > 0 {
            endpoint.publish(generation, name, text());
        }
    }

    /// Lets readers have the last events, and removes the folder. A file system that does not answer is left behind.
    pub(super) fn close(&mut self) {
        if let SocketState::Opening(call) = &self.socket {
            let _ = wait_for_inputs(&[call.as_fd()], Some(Instant::now() + FOLDER_TIMEOUT));
        }
        self.endpoint();
        match std::mem::take(&mut self.socket) {
            SocketState::Closed => {}
            SocketState::Opening(_) => self.fail(&silent_folder().into()),
            SocketState::Open(endpoint) => {
                let is_in_memory = endpoint.is_in_memory();
                let folder = endpoint.close();
                let path = folder.path.display().to_string();
                let removed = if is_in_memory {
                    folder.remove()
                } else {
                    let removal = BlockingCall::start(THREAD, move |_| folder.remove());
                    removal.and_then(|call| call.wait(FOLDER_TIMEOUT).unwrap_or_else(|| Err(silent_folder())))
                };
                if let Err(error) = removed
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::debug!("`{path}` stays: {error}");
                }
            }
        }
    }
}

fn silent_folder() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the file system of its folder does not answer")
}

impl Agent<'_> {
    /// Opens the socket, once the workers are started or the launcher says that the job waits: a start does not wait
    /// for it. Under the name torchrun there is no socket. Without a place for it the job runs on, and the next start
    /// tries again.
    pub(super) fn open_control_socket(&mut self) {
        if self.workers.spec().cli_flavor == CliFlavor::Torchrun {
            return;
        }
        match &mut self.control.socket {
            SocketState::Opening(_) => {}
            SocketState::Open(endpoint) => endpoint.retry_server(),
            SocketState::Closed => {
                let places = RuntimeFolders::of_environment(self.workers.environment());
                let job = self.workers.job().clone();
                let call = BlockingCall::start(THREAD, move |_| ControlEndpoint::open(&places, &job));
                match call {
                    Ok(call) => self.control.socket = SocketState::Opening(call),
                    Err(error) => self.control.fail(&error.into()),
                }
            }
        }
    }

    /// Answers the clients; a stop and a restart become inputs of the state.
    pub(super) fn answer_control_requests(&mut self) -> Vec<Input> {
        let requests = self.control.endpoint().map(ControlEndpoint::take_requests).unwrap_or_default();
        requests.into_iter().filter_map(|request| self.answer_control_request(request)).collect()
    }

    fn answer_control_request(&mut self, request: ControlRequest) -> Option<Input> {
        match request {
            ControlRequest::Status(reply) => {
                // A client that has gone needs no answer.
                let _ = reply.send(Box::new(self.job_snapshot()));
                None
            }
            ControlRequest::Stacks(reply) => {
                let _ = reply.send(self.stack_targets());
                None
            }
            ControlRequest::Stop { client, reply } => {
                self.accept(reply);
                let text = format!("`rankrun stop`{} asks for a stop", by_pid(client));
                self.announce("client_asks_for_stop", &text);
                Some(self.state.stop_by_client())
            }
            ControlRequest::Restart { client, reply } => {
                self.control.restart_requests.push_back(RestartRequest { client, reply });
                Some(Input::RestartRequested)
            }
        }
    }

    /// Answers the first request to restart. The state is about to handle it, and is what decides.
    pub(super) fn answer_restart_request(&mut self) {
        let Some(RestartRequest { client, reply }) = self.control.restart_requests.pop_front() else {
            return;
        };
        if let Err(refusal) = self.state.check_restart_request() {
            // A client that has gone needs no answer.
            let _ = reply.send(Err(refusal));
            return;
        }
        self.accept(reply);
        let text = format!("`rankrun restart`{} asks for a restart", by_pid(client));
        self.announce("client_asks_for_restart", &text);
    }

    fn accept(&self, reply: oneshot::Sender<ControlReply>) {
        let launcher_pid = self.final_report.launcher().as_raw();
        let _ = reply.send(Ok(Accepted { launcher_pid }));
    }

    /// The workers whose stacks can be taken.
    pub(super) fn stack_targets(&self) -> Vec<StackTarget> {
        self.workers.stack_targets(&|local_rank| self.state.is_live(local_rank))
    }

    fn job_snapshot(&self) -> JobSnapshot {
        let summary = self.state.summary();
        let is_live = |local_rank: LocalRank| self.state.is_live(local_rank);
        self.workers.snapshot(&summary, self.final_report.launcher(), self.began.elapsed(), &is_live)
    }
}

fn by_pid(client: Option<i32>) -> String {
    client.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}
