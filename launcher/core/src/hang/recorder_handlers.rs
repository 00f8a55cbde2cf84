//! Which flight recorders a worker can be asked for. Each kind of process group has a recorder of its own, and each version
//! of PyTorch has handlers of its own for them; the server of its control plane lists them.
//!
//! | PyTorch | gloo | NCCL |
//! |---|---|---|
//! | 2.15 | `fr_trace_json?backend=gloo` | `fr_trace_json?backend=nccl2`; for the legacy group `dump_nccl_trace_json` |
//! | from 2.8 | `fr_trace_json` | `dump_nccl_trace_json` |
//! | from 2.5 | none | `dump_nccl_trace_json` |
//! | 2.4 | none | `dump_nccl_trace_pickle` |
//!
//! No request asks for stack traces: they need the lock of the interpreter, which a worker that hangs may hold. The handler of
//! 2.4 takes no parameters and always looks them up, so it answers only where that lock is free.
//!
//! Source: `torch/csrc/distributed/c10d/control_plane/Handlers.cpp`, `FlightRecorder.cpp` there, `ProcessGroupNCCL.cpp` of 2.4.

use crate::hang::evidence::Groups;
use crate::hang::flight_recorder::{TraceError, parse_pickled_trace, parse_trace};

/// Where a GET answers with the list.
pub const HANDLER_LIST: &str = "/handler/";

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TraceForm {
    Json,
    Pickle,
}

/// One recorder of a worker: a POST to its target gives the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecorderRequest {
    /// Path and parameters.
    pub target: &'static str,
    /// The library whose collectives it lists. Each counts its groups for itself.
    library: &'static str,
    form: TraceForm,
}

const GLOO: RecorderRequest =
    RecorderRequest { target: "/handler/fr_trace_json?backend=gloo", library: "gloo", form: TraceForm::Json };
const NCCL2: RecorderRequest = RecorderRequest {
    target: "/handler/fr_trace_json?backend=nccl2",
    library: "nccl2",
    form: TraceForm::Json,
};
const LEGACY_NCCL: RecorderRequest = RecorderRequest {
    target: "/handler/dump_nccl_trace_json?includecollectives=true&onlyactive=false",
    library: "nccl",
    form: TraceForm::Json,
};
const OLD_NCCL: RecorderRequest = RecorderRequest {
    target: "/handler/dump_nccl_trace_pickle?includestacktraces=false",
    library: "nccl",
    form: TraceForm::Pickle,
};

/// The recorders that these handlers answer for, by the list in JSON.
///
/// # Errors
/// The text is not a list of names.
pub fn recorder_requests(list: &[u8]) -> Result<Vec<RecorderRequest>, TraceError> {
    let handlers: Vec<String> = serde_json::from_slice(list)?;
    let has = |name: &str| handlers.iter().any(|handler| handler == name);
    let mut requests = Vec::new();
    if has("fr_trace_json") {
        requests.push(GLOO);
        // The handler that came with it takes no name of a recorder, and would answer for gloo again.
        requests.extend(has("fr_dump_file").then_some(NCCL2));
    }
    if has("dump_nccl_trace_json") {
        requests.push(LEGACY_NCCL);
    } else if has("dump_nccl_trace_pickle") {
        requests.push(OLD_NCCL);
    }
    Ok(requests)
}

impl RecorderRequest {
    /// The groups in its answer, with names that no other recorder of a worker uses.
    ///
    /// # Errors
    /// The answer is not a trace.
    pub fn parse_answer(&self, answer: &[u8]) -> Result<Groups, TraceError> {
        let groups = match self.form {
            TraceForm::Json => parse_trace(answer)?,
            TraceForm::Pickle => parse_pickled_trace(answer)?,
        };
        Ok(groups.into_iter().map(|(name, group)| (format!("{}:{name}", self.library), group)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(list: &str) -> Vec<&'static str> {
        recorder_requests(list.as_bytes()).unwrap().iter().map(|request| request.target).collect()
    }

    #[test]
    fn requests_follow_listed_handlers() {
        let recorded =
            r#"["ping","fr_trace_json","fr_dump_file","dump_nccl_trace_json","dump_nccl_trace_pickle"]"#;
        assert_eq!(targets(recorded), [GLOO.target, NCCL2.target, LEGACY_NCCL.target]);
        let older = r#"["dump_nccl_trace_pickle","dump_nccl_trace_json","fr_trace_json","ping"]"#;
        assert_eq!(targets(older), [GLOO.target, LEGACY_NCCL.target]);
        assert_eq!(targets(r#"["dump_nccl_trace_json","dump_nccl_trace_pickle"]"#), [LEGACY_NCCL.target]);
        assert_eq!(targets(r#"["ping","dump_nccl_trace_pickle"]"#), [OLD_NCCL.target]);
        assert!(targets(r#"["ping","dump_traceback"]"#).is_empty());
    }

    #[test]
    fn list_of_other_form_is_an_error() {
        for list in ["", "{}", "[1]", "<h1>torch.distributed.WorkerServer</h1>"] {
            assert!(recorder_requests(list.as_bytes()).is_err(), "{list}");
        }
    }

    #[test]
    fn groups_of_recorders_have_names_of_their_own() {
        let answer = br#"{"entries": [{"process_group": ["0", "default_pg"], "collective_seq_id": 3}]}"#;
        let names = |request: RecorderRequest| request.parse_answer(answer).unwrap().into_keys().next();
        assert_eq!(names(GLOO).as_deref(), Some("gloo:0"));
        assert_eq!(names(NCCL2).as_deref(), Some("nccl2:0"));
        assert_eq!(names(LEGACY_NCCL).as_deref(), Some("nccl:0"));
        assert!(OLD_NCCL.parse_answer(answer).is_err());
    }
}
