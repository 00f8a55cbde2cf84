//! A launch for tests.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::device::WorkerDevice;
use crate::spec::stop::GraceFor;

/// Two workers that run `/bin/true`.
///
/// # Panics
/// Never: two is a size.
#[must_use]
pub fn example() -> LaunchSpec {
    let none = StreamMap::All(Streams::default());
    LaunchSpec {
        cli_flavor: CliFlavor::Rankrun,
        entrypoint: Entrypoint::Program { path: PathBuf::from("/bin/true"), name: "true".into() },
        args: Vec::new(),
        workers: LocalWorldSize::new(2).expect("two is a size"),
        role: "default".to_owned(),
        network: NetworkSpec::default(),
        rendezvous: RendezvousSpec::Standalone {
            run_id: RunId("example".to_owned()),
            local_addr: None,
            worker_store: false,
        },
        max_restarts: RestartCount(0),
        restart: RestartPolicy::default(),
        stop: StopPolicy { grace: Duration::from_secs(30), grace_for: GraceFor::default() },
        leftovers: LeftoverPolicy::End { grace: Duration::from_secs(30) },
        start_timeout: None,
        hang: HangTimes::default(),
        time_limit: None,
        signals: SignalSpec::torchrun(),
        dstate_timeout: None,
        logs: LogSpec {
            dir: LogDir::Off,
            redirects: none.clone(),
            tee: none,
            console: None,
            prefix: None,
            duplicates: LineFilters::default(),
        },
        node_task: None,
        stdin: StdinPolicy::All,
        defaults: WorkerDefaults {
            nccl_async_error_handling: false,
            interfaces: Vec::new(),
            connection_interfaces: Vec::new(),
            nccl_library: None,
        },
        devices: DeviceChoice {
            workers: (0..2).map(|rank| WorkerDevice::cpu(LocalRank(rank))).collect(),
            ..DeviceChoice::cpus(Vec::new())
        },
        device_request: DeviceRequest::default(),
        events: EventLog::Off,
        parent_error_file: None,
        external_worker: None,
        nesting: String::new(),
        wrappers: Vec::new(),
        options: IndependentOptions::default(),
    }
}
