//! The number of a job that its processes inherit, whatever happens to their environment.
//!
//! `RANKRUN_JOB` leaks: `sbatch --export=ALL` and `at` copy a worker's environment to processes that no worker has
//! started. A resource limit passes from parent to child alone, through `setsid` and `execve` too. The limit on file
//! locks (`RLIMIT_LOCKS`) has no effect since Linux 2.4.25, so its soft value can carry the number. Slurm, which
//! copies other limits (`PropagateResourceLimits`), does not know this one, and PAM sets it anew for a login, for
//! cron and for at.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use uuid::Uuid;

use rankrun_contract::rank::JobId;

use crate::process::proc::{ProcessScanError, seen};

/// How the limit is called in `/proc/PID/limits` (proc(5)).
const ROW: &str = "Max file locks";

/// Gives this process and its later descendants the job's number. If the kernel refuses, `rankrun gc` cannot be
/// certain about leftovers of a crash.
pub fn set(job: &JobId) {
    let Ok(job) = Uuid::try_parse(&job.0) else { return };
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_LOCKS) {
        let _ = setrlimit(Resource::RLIMIT_LOCKS, number_of(job), hard);
    }
}

/// Whether the process has inherited the job's number.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`.
pub(super) fn has(pid: Pid, job: Uuid) -> Result<bool, ProcessScanError> {
    let limits = seen(fs::read_to_string(format!("/proc/{pid}/limits")))?;
    Ok(limits.as_deref().and_then(soft_limit) == Some(number_of(job)))
}

/// 63 bits of the job's: the limit that means "none" has all 64.
const fn number_of(job: Uuid) -> u64 {
    job.as_u64_pair().1 >> 1
}

/// The soft limit on file locks; nothing where there is none.
fn soft_limit(limits: &str) -> Option<u64> {
    let values = limits.lines().find_map(|line| line.strip_prefix(ROW))?;
    values.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_the_first_number_of_its_row() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max cpu time              17                   unlimited            seconds   \n\
                      Max file locks            4611686018427387905  unlimited            locks     \n";
        assert_eq!(soft_limit(limits), Some(4_611_686_018_427_387_905));
        assert_eq!(
            soft_limit("Max file locks            unlimited            unlimited            locks\n"),
            None
        );
        assert_eq!(
            soft_limit("Max cpu time              17                   unlimited            seconds\n"),
            None
        );
        assert_eq!(soft_limit(""), None);
    }

    #[test]
    fn two_jobs_have_two_numbers_and_neither_means_no_limit() {
        let [one, other] = [Uuid::new_v4(), Uuid::new_v4()].map(number_of);
        assert_ne!(one, other);
        assert!(number_of(Uuid::from_u128(u128::MAX)) < nix::libc::RLIM_INFINITY);
    }
}
