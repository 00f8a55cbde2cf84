//! The number of a job that its processes inherit, whatever happens to their environment.
//!
//! `RANKRUN_JOB` leaks: `sbatch --export=ALL` and `at` copy a worker's environment to processes that no worker has
//! started. A resource limit passes from parent to child alone, through `setsid` and `execve` too. The limit on file
//! locks (`RLIMIT_LOCKS`) has no effect since Linux 2.4.25, so its soft value can carry the number. Slurm, which
//! copies other limits (`PropagateResourceLimits`), does not know this one, and PAM sets it anew for a login, for
//! cron and for at.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rankrun_core::posix::Pid;
use rankrun_core::posix::ProcessScanError;
use uuid::Uuid;

use rankrun_contract::rank::JobId;

use crate::process::proc::absent_if_not_found;

/// How the limit is called in `/proc/PID/limits` (proc(5)).
const LIMITS_ROW: &str = "Max file locks";

/// Gives this process and its later descendants the job's number. If the kernel refuses, `rankrun gc` cannot be
/// certain about leftovers of a crash.
pub fn set_job_mark(job: &JobId) {
    let Ok(job) = Uuid::try_parse(&job.0) else { return };
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_LOCKS) {
        let _ = setrlimit(Resource::RLIMIT_LOCKS, lock_limit_of(job), hard);
    }
}

/// Whether the process has inherited the job's number.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`.
pub(super) fn has_job_mark(pid: Pid, job: Uuid) -> Result<bool, ProcessScanError> {
    let limits = absent_if_not_found(fs::read_to_string(format!("/proc/{pid}/limits")))?;
    Ok(limits.as_deref().and_then(soft_limit) == Some(lock_limit_of(job)))
}

/// 63 bits of the job's: the limit that means "none" has all 64.
const fn lock_limit_of(job: Uuid) -> u64 {
    job.as_u64_pair().1 >> 1
}

/// The soft limit on file locks; nothing where there is none.
fn soft_limit(limits: &str) -> Option<u64> {
    let values = limits.lines().find_map(|line| line.strip_prefix(LIMITS_ROW))?;
    values.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_parsed_from_its_row() {
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
    fn job_numbers_differ_and_are_below_infinity() {
        let [one, other] = [Uuid::new_v4(), Uuid::new_v4()].map(lock_limit_of);
        assert_ne!(one, other);
        assert!(lock_limit_of(Uuid::from_u128(u128::MAX)) < nix::libc::RLIM_INFINITY);
    }
}
