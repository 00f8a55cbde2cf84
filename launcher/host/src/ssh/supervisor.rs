//! The local launcher of a job of several hosts: starts the ssh clients together, passes signals on, and copies the output.
//! What follows from an event is [`FleetState`]'s.
#![expect(clippy::disallowed_methods, reason = "reads the clock, and asks the ssh client for its settings")]

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::{Outputs, SshClient};
use super::output::SharedOutput;
use crate::error::LaunchError;
use crate::process::inherited;
use crate::process::signal::{HandledSignals, SignalInbox, block};
use rankrun_core::exit_code::{ExitStatus, code_of_signal};
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::rendezvous::STATIC_PORT;
use rankrun_core::ssh::node_lines::NodeLines;
use rankrun_core::ssh::plan::{FleetSpec, parse_ssh_hostname};
use rankrun_core::ssh::protocol::AgentFrame;
use rankrun_core::ssh::supervision::{FleetAction, FleetError, FleetInput, FleetState};

/// `ssh -G` reads files and connects to no host.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(5);
/// The settings are some hundred lines.
const MAX_SETTINGS: u64 = 1 << 20;

/// Runs the job; its exit status.
///
/// # Errors
/// The ssh client cannot be started, or this process cannot wait for it.
pub fn run(
    spec: &FleetSpec,
    version: &'static str,
    render: &dyn Fn(&FleetError) -> String,
) -> Result<ExitStatus, LaunchError> {
    let _ = inherited::raise_file_limit();
    let setup = |what| move |source| LaunchError::Setup { what, source };
    let begin = Instant::now();
    let clients = start_clients(spec).map_err(|source| LaunchError::SshClient {
        program: spec.ssh.first().cloned().unwrap_or_default(),
        source,
    })?;
    // After the start: a client would inherit the blocked signals.
    let handled = HandledSignals::of(&spec.signals, CliFlavor::Rankrun);
    block(&handled).map_err(setup("handle signals"))?;
    let inbox = SignalInbox::open(&handled).map_err(setup("handle signals"))?;
    let outputs = Outputs::of_process().map_err(setup("open the console"))?;
    let names = (0..spec.nodes.len()).map(|node| spec.name(node).to_owned()).collect();
    let state = FleetState::new(names, (spec.launcher.clone(), version), (begin, spec.connect_limit));
    let address = first_address(spec);
    let supervisor = Supervisor { spec, state, clients, handled, inbox, outputs, address, render };
    supervisor.run().map_err(setup("wait for the ssh clients"))
}

struct Supervisor<'a> {
    spec: &'a FleetSpec,
    state: FleetState,
    clients: Vec<SshClient>,
    handled: HandledSignals,
    inbox: SignalInbox,
    outputs: Outputs,
    /// Where the nodes meet.
    address: String,
    render: &'a dyn Fn(&FleetError) -> String,
}

impl Supervisor<'_> {
    fn run(mut self) -> io::Result<ExitStatus> {
        loop {
            let signal = self.take_signals()?;
            for node in 0..self.clients.len() {
                self.look_at(node);
            }
            self.handle(FleetInput::Time);
            self.outputs.stdout.write_ready();
            self.outputs.stderr.write_ready();
            if let Some(status) = self.state.status() {
                if self.outputs.stdout.is_empty() && self.outputs.stderr.is_empty() {
                    return Ok(status);
                }
                // The reader of the output does not read; the user does not wait for it.
                if let Some(signal) = signal {
                    return Ok(ExitStatus::Code(code_of_signal(signal)));
                }
            }
            self.wait()?;
        }
    }

    /// Hands all signals of this process on; the last one that stops the job.
    fn take_signals(&mut self) -> io::Result<Option<i32>> {
        let mut last = None;
        while let Some(signal) = self.inbox.next()? {
            if self.handled.is_stop_signal(signal) {
                last = Some(signal);
                self.handle(FleetInput::Stop(signal));
            } else if self.handled.contains(signal) {
                self.handle(FleetInput::Forward(signal));
            }
        }
        Ok(last)
    }

    fn look_at(&mut self, node: usize) {
        let client = &mut self.clients[node];
        client.send_unsent();
        if self.outputs.have_room()
            && let Some(hello) = client.copy(&mut self.outputs)
        {
            self.handle(FleetInput::Hello(node, hello));
        }
        if let Some((exit, cause)) = self.clients[node].ended(&mut self.outputs) {
            self.handle(FleetInput::Ended(node, exit, cause));
        }
    }

    fn handle(&mut self, input: FleetInput) {
        for action in self.state.handle(Instant::now(), input) {
            match action {
                FleetAction::Launch(node, port) => self.launch(node, port),
                FleetAction::Stop(node, signal) => self.send(node, &AgentFrame::Stop { signal }),
                FleetAction::Forward(node, signal) => self.send(node, &AgentFrame::Forward { signal }),
                FleetAction::Kill(node) => self.clients[node].kill(),
                FleetAction::Report(error) => {
                    let text = (self.render)(&error);
                    self.outputs.stderr.pending().extend_from_slice(text.as_bytes());
                }
            }
        }
    }

    fn send(&mut self, node: usize, signal: &AgentFrame) {
        // Such a frame is short.
        self.clients[node].send(&signal.encode().unwrap_or_default());
    }

    fn launch(&mut self, node: usize, port: u16) {
        // The host has no port to keep, as without any network: the launcher there says why.
        let port = if port == 0 { STATIC_PORT } else { port };
        let port = self.spec.rendezvous.port.unwrap_or(port);
        let launch = AgentFrame::Launch(self.spec.node_launch(node, (&self.address, port)));
        match launch.encode() {
            Ok(frame) => self.clients[node].send(&frame),
            Err(error) => {
                let text = format!("error: the host cannot be told what to launch: {error}\n");
                self.outputs.stderr.pending().extend_from_slice(text.as_bytes());
                self.clients[node].kill();
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let can_read = self.outputs.have_room();
        let mut inputs = vec![PollFd::new(self.inbox.as_fd(), PollFlags::POLLIN)];
        for client in &self.clients {
            inputs.extend(client.interests(can_read).map(|(fd, events)| PollFd::new(fd, events)));
        }
        let outputs = [&self.outputs.stdout, &self.outputs.stderr].into_iter();
        let waiting = outputs.filter(|output| !output.is_empty());
        inputs.extend(waiting.map(|output| PollFd::new(output.as_fd(), PollFlags::POLLOUT)));
        match poll(&mut inputs, self.timeout()) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn timeout(&self) -> PollTimeout {
        self.state.deadline().map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, as in any wait.
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }
}

impl Outputs {
    fn of_process() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self { stdout: SharedOutput::new(stdout), stderr: SharedOutput::new(stderr) })
    }

    const fn have_room(&self) -> bool {
        self.stdout.has_room() && self.stderr.has_room()
    }
}

fn start_clients(spec: &FleetSpec) -> io::Result<Vec<SshClient>> {
    let is_alone = spec.nodes.len() == 1;
    let lines = |node| {
        if is_alone { NodeLines::unchanged() } else { NodeLines::with_name(spec.name(node)) }
    };
    (0..spec.nodes.len()).map(|node| SshClient::start(&spec.ssh_command(node), || lines(node))).collect()
}

/// The address by which the other hosts reach the first one: what the user gave, else what its ssh alias stands for.
fn first_address(spec: &FleetSpec) -> String {
    let name = || spec.name(0).to_owned();
    match &spec.rendezvous.address {
        Some(address) => address.clone(),
        None if spec.nodes.len() == 1 => name(),
        None => ssh_hostname(&spec.ssh_settings_command()).unwrap_or_else(name),
    }
}

/// The `HostName` of ssh's settings, within its time limit.
fn ssh_hostname(command: &[String]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + SETTINGS_TIMEOUT;
    let mut settings = child.stdout.take()?.take(MAX_SETTINGS);
    let mut text = Vec::new();
    loop {
        let left = PollTimeout::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        let mut inputs = [PollFd::new(settings.get_ref().as_fd(), PollFlags::POLLIN)];
        let mut bytes = [0; 4096];
        match poll(&mut inputs, left) {
            Err(Errno::EINTR) => {}
            Ok(1..) => match settings.read(&mut bytes) {
                Ok(count @ 1..) => text.extend_from_slice(&bytes[..count]),
                Ok(_) | Err(_) => break,
            },
            Ok(_) | Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    parse_ssh_hostname(&String::from_utf8_lossy(&text)).map(str::to_owned)
}
