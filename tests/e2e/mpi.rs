//! Jobs whose tasks a real MPI launcher starts over ssh: one task for each rank, and one on each node. `tests/mpi` installs
//! the launchers, and names their folder in `RANKRUN_TEST_MPI`.

use std::path::PathBuf;

use harness::{Launch, Name, SshFleet, mpi_folders};
use nix::sys::signal::Signal;

use crate::slurm::{expected_places, places};

/// An installed launcher.
struct Mpi {
    folder: PathBuf,
    program: PathBuf,
    /// Else it is Hydra, of MPICH or Intel.
    is_open_mpi: bool,
}

fn installed() -> Vec<Mpi> {
    let find = |folder: PathBuf| {
        let programs = ["bin/mpiexec.hydra", "bin/mpirun"].map(|name| folder.join(name));
        let program = programs.into_iter().find(|path| path.is_file()).expect("each folder has a launcher");
        Mpi { is_open_mpi: program.ends_with("mpirun"), program, folder }
    };
    mpi_folders().into_iter().map(find).collect()
}

impl Mpi {
    /// The launch as `per_node` tasks on each of th1 and th2.
    fn launch(&self, ssh: &SshFleet, per_node: u32, options: &[&str], steps: &[&str]) -> Launch {
        let launch = Launch::new(Name::Rankrun).args(options.to_vec()).worker(steps.to_vec());
        let launch = launch.env("OPAL_PREFIX", &self.folder).env("I_MPI_ROOT", &self.folder);
        let launch = ssh.prepare(launch.env("LD_LIBRARY_PATH", self.folder.join("lib")));
        let words = if self.is_open_mpi {
            format!("--allow-run-as-root -H th1:2,th2:2 --bind-to none --map-by ppr:{per_node}:node")
        } else {
            format!("-hosts th1,th2 -ppn {per_node} -n {}", 2 * per_node)
        };
        launch.under([&self.program]).under(words.split_whitespace())
    }
}

#[test]
fn tasks_of_real_mpi_launchers_are_one_job() {
    for mpi in installed() {
        let Some(ssh) = SshFleet::start(2) else { return };
        let name = mpi.folder.display();
        for (per_node, options) in
            [(2, &["--master-addr", "th1"][..]), (1, &["--master-addr", "th1", "--nproc-per-node", "2"])]
        {
            let outcome = mpi.launch(&ssh, per_node, options, &["place", "sum", "reduce=3"]).run();
            outcome.expect_exit_code(0);
            assert_eq!(
                places(&outcome),
                expected_places(&[2, 2]),
                "{name}, {per_node} tasks per node\n{outcome}"
            );
        }
        let outcome = mpi.launch(&ssh, 2, &[], &["place"]).run();
        outcome.expect_stderr("name the node of task 0").expect_absent("place rank=");
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let job =
                mpi.launch(&ssh, 2, &["--master-addr", "th1"], &["sum", "print=ready", "forever"]).start();
            job.wait_for_lines("ready", 4);
            job.signal(signal);
            let _ = job.wait();
        }
        ssh.assert_nothing_left();
    }
}
