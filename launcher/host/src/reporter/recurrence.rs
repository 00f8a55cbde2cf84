//! The line on a failure that comes again and again, where nothing shows whether the job makes progress. Pure.

use crate::reporter::exception::place_of;
use rankrun_core::job_event::FailureKind;
use rankrun_core::job_event::failure_signature::FailureSignature;
use rankrun_core::spec::restart::FailureCause;

#[must_use]
pub(crate) fn recurrence_text(signature: &FailureSignature, restarts: u32) -> String {
    format!(
        "the same failure for the {} time in a row: {}; nothing shows whether the job makes progress: neither `--progress-dir` \
         nor a heartbeat",
        ordinal(restarts.saturating_add(1)),
        signature_text(signature)
    )
}

/// As in `ValueError in load_batch (data.py:17)`.
fn signature_text(signature: &FailureSignature) -> String {
    match signature {
        FailureSignature::Exception(exception) => {
            format!("{}{}", exception.kind, exception.frame.as_ref().map(place_of).unwrap_or_default())
        }
        FailureSignature::Exit { rank, exit, cause } => match cause {
            Some(FailureCause::Oom) => format!("rank {rank} ran out of memory"),
            _ => format!("rank {rank}: {exit}"),
        },
        FailureSignature::Stopped { rank, kind, cause } => match (kind, cause) {
            (_, Some(FailureCause::Desync)) => "the ranks call different collectives".to_owned(),
            (FailureKind::NotJoined { .. }, _) => format!("rank {rank} has not joined in time"),
            _ => format!("rank {rank} makes no progress"),
        },
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (1, teen) if teen != 11 => "st",
        (2, teen) if teen != 12 => "nd",
        (3, teen) if teen != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::rank::Rank;
    use rankrun_core::job_event::failure_signature::RaisedException;
    use rankrun_core::posix::Exit;
    use rankrun_core::stacks::Frame;

    #[test]
    fn line_has_count_and_cause() {
        let text = |signature: FailureSignature, restarts| recurrence_text(&signature, restarts);
        let frame = |function: &str| {
            Some(Frame { function: function.to_owned(), file: "/job/data.py".to_owned(), line: 17 })
        };
        let raised =
            |frame| FailureSignature::Exception(RaisedException { kind: "ValueError".to_owned(), frame });
        let exit = |exit, cause| FailureSignature::Exit { rank: Rank(3), exit, cause };
        let stopped = |kind, cause| FailureSignature::Stopped { rank: Rank(3), kind, cause };
        let killed = Exit::Signal { number: libc::SIGKILL, core_dumped: false };
        for (signature, restarts, expected) in [
            (raised(frame("load")), 2, "3rd time in a row: ValueError in load (data.py:17); nothing shows"),
            (raised(frame("<module>")), 1, "2nd time in a row: ValueError at data.py:17; nothing shows"),
            (raised(None), 10, "11th time in a row: ValueError; nothing shows"),
            (exit(Exit::Code(5), None), 20, "21st time in a row: rank 3: exit code 5; nothing shows"),
            (
                exit(killed, Some(FailureCause::Oom)),
                3,
                "4th time in a row: rank 3 ran out of memory; nothing shows",
            ),
            (
                stopped(FailureKind::Hang, Some(FailureCause::Hang)),
                3,
                "rank 3 makes no progress; nothing shows",
            ),
            (
                stopped(FailureKind::Hang, Some(FailureCause::Desync)),
                3,
                "call different collectives; nothing shows",
            ),
        ] {
            let text = text(signature, restarts);
            assert!(text.contains(expected), "{text}");
        }
    }
}
