//! Which job a person means: by id, unique prefix of it, run id, or launcher's pid. Pure.

/// The names of one running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobNames {
    /// The job id.
    pub job: String,
    /// The run id, or why the job has not told it.
    pub run_id: Result<String, String>,
    /// The launcher's pid, if it is known.
    pub launcher_pid: Option<i32>,
}

/// Why a query names no single job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No job of this user runs here.
    #[error("no job of this user runs on this machine: searched {searched}")]
    NoJobs {
        /// The folders of control sockets.
        searched: String,
    },
    /// Several jobs run, and none was named.
    #[error("{} jobs run on this machine: {}", jobs.len(), jobs.join(", "))]
    Several {
        /// The ids of the jobs.
        jobs: Vec<String>,
    },
    /// No job has this name.
    #[error("no running job has the id, run id or launcher pid `{query}`: searched {searched}")]
    NoMatch {
        /// The words of the user.
        query: String,
        /// The folders of control sockets.
        searched: String,
    },
    /// Some jobs do not answer, and no other job has this name.
    #[error(
        "`{query}` names no job that answers; {} without an answer: {}",
        if silent.len() == 1 { "a job".to_owned() } else { format!("{} jobs", silent.len()) },
        silent.join(", ")
    )]
    Silent {
        /// The words of the user.
        query: String,
        /// The ids of the jobs that do not answer, each with the reason.
        silent: Vec<String>,
    },
    /// Several jobs have this name.
    #[error("`{query}` names {} jobs: {}", jobs.len(), jobs.join(", "))]
    Ambiguous {
        /// The words of the user.
        query: String,
        /// The ids of the jobs.
        jobs: Vec<String>,
    },
}

impl LookupError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoJobs { .. } => {
                "a job under the name torchrun has no control socket; XDG_RUNTIME_DIR and TMPDIR name other folders"
            }
            Self::Several { .. } | Self::Ambiguous { .. } => {
                "name one by its job id, or by the pid of its launcher; `rankrun ls` lists them"
            }
            Self::Silent { .. } => {
                "name such a job by its job id or its launcher's pid: its run id is unknown"
            }
            Self::NoMatch { .. } => "`rankrun ls` lists the running jobs",
        }
    }
}

/// The position of the job that `query` names; without a query the only one. An error names the folders that were
/// `searched`.
///
/// # Errors
/// There is no such job, or more than one.
pub(crate) fn find_job(jobs: &[JobNames], query: Option<&str>, searched: &str) -> Result<usize, LookupError> {
    let ids = |found: &[usize]| found.iter().map(|at| jobs[*at].job.clone()).collect::<Vec<_>>();
    let Some(query) = query else {
        return match jobs.len() {
            0 => Err(LookupError::NoJobs { searched: searched.to_owned() }),
            1 => Ok(0),
            _ => Err(LookupError::Several { jobs: ids(&(0..jobs.len()).collect::<Vec<_>>()) }),
        };
    };
    let pid = query.parse::<i32>().ok();
    let kinds: [&dyn Fn(&JobNames) -> bool; 4] = [
        &|job| job.job == query,
        &|job| job.run_id.as_deref() == Ok(query),
        &|job| pid.is_some() && job.launcher_pid == pid,
        &|job| !query.is_empty() && job.job.starts_with(query),
    ];
    for matches in kinds {
        let found: Vec<usize> = (0..jobs.len()).filter(|at| matches(&jobs[*at])).collect();
        match found.as_slice() {
            [] => {}
            [one] => return Ok(*one),
            several => {
                return Err(LookupError::Ambiguous { query: query.to_owned(), jobs: ids(several) });
            }
        }
    }
    let why_silent = |job: &JobNames| Some(format!("{} ({})", job.job, job.run_id.as_ref().err()?));
    let (query, silent): (_, Vec<_>) = (query.to_owned(), jobs.iter().filter_map(why_silent).collect());
    Err(if silent.is_empty() {
        LookupError::NoMatch { query, searched: searched.to_owned() }
    } else {
        LookupError::Silent { query, silent }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The question of a user whose only place is `/r`.
    fn find_job(jobs: &[JobNames], query: Option<&str>) -> Result<usize, LookupError> {
        super::find_job(jobs, query, "`/r`")
    }

    fn jobs() -> Vec<JobNames> {
        let job = |job: &str, run_id: Option<&str>, launcher_pid| JobNames {
            job: job.to_owned(),
            run_id: run_id.map(str::to_owned).ok_or_else(|| "it hangs".to_owned()),
            launcher_pid,
        };
        vec![
            job("12ab", Some("train"), Some(77)),
            job("12cd", Some("train"), Some(12)),
            job("99ef", Some("eval"), Some(99)),
            job("f00d", None, Some(31)),
        ]
    }

    #[test]
    fn job_is_found_by_id_run_id_pid_and_prefix() {
        for (query, at) in [("12ab", 0), ("eval", 2), ("77", 0), ("12c", 1), ("99e", 2), ("f", 3), ("31", 3)]
        {
            assert_eq!(find_job(&jobs(), Some(query)), Ok(at), "{query}");
        }
        // The launcher's pid comes before a prefix of another job's id.
        assert_eq!(find_job(&jobs(), Some("12")), Ok(1));
    }

    #[test]
    fn query_without_single_job_is_refused() {
        let refusal = |query| find_job(&jobs(), query).unwrap_err().to_string();
        let of_all_that_answer = |query| find_job(&jobs()[..3], Some(query)).unwrap_err().to_string();
        assert_eq!(refusal(Some("train")), "`train` names 2 jobs: 12ab, 12cd");
        assert_eq!(refusal(Some("1")), "`1` names 2 jobs: 12ab, 12cd");
        assert_eq!(
            of_all_that_answer("x"),
            "no running job has the id, run id or launcher pid `x`: searched `/r`"
        );
        assert_eq!(
            of_all_that_answer(""),
            "no running job has the id, run id or launcher pid ``: searched `/r`"
        );
        assert_eq!(
            refusal(Some("x")),
            "`x` names no job that answers; a job without an answer: f00d (it hangs)"
        );
        assert_eq!(refusal(None), "4 jobs run on this machine: 12ab, 12cd, 99ef, f00d");
        assert_eq!(find_job(&jobs()[..1], None), Ok(0));
        let none = find_job(&[], None).unwrap_err().to_string();
        assert_eq!(none, "no job of this user runs on this machine: searched `/r`");
    }
}
