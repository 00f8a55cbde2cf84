use super::*;
use crate::gc::paths::PathKind;

const JOB: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);
const SURE: MarkEvidence = MarkEvidence::Inherited;
const MARKED: ProcessRelation = ProcessRelation::Marked { job: JOB, evidence: SURE, kept: false };
const KEPT: ProcessRelation = ProcessRelation::Marked { job: JOB, evidence: SURE, kept: true };
const LEAKED: ProcessRelation =
    ProcessRelation::Marked { job: JOB, evidence: MarkEvidence::Environment, kept: false };

/// Takes (pid, parent, standing) of each process.
fn left(processes: &[(i32, i32, ProcessRelation)], me: i32) -> Vec<i32> {
    left_with_evidence(processes, me).into_iter().map(|(pid, _)| pid).collect()
}

fn left_with_evidence(processes: &[(i32, i32, ProcessRelation)], me: i32) -> Vec<(i32, MarkEvidence)> {
    let records: Vec<ProcessRecord> = processes
        .iter()
        .map(|(pid, parent, standing)| ProcessRecord {
            pid: *pid,
            parent: *parent,
            started: 0,
            standing: standing.clone(),
        })
        .collect();
    super::find_leftovers(&records, me)
        .into_iter()
        .map(|(process, _, evidence)| (process.pid, evidence))
        .collect()
}

#[test]
fn orphans_are_listed_with_descendants() {
    use ProcessRelation::Unrelated;
    let processes = [
        (1, 0, Unrelated),
        (30, 1, MARKED),
        (20, 30, MARKED),
        (21, 30, Unrelated),
        (22, 21, ProcessRelation::Marked { job: OTHER, evidence: SURE, kept: false }),
    ];
    assert_eq!(left(&processes, 1), [20, 22, 30]);
}

#[test]
fn descendants_of_launcher_are_not_listed() {
    use ProcessRelation::{Launcher, Unrelated};
    let processes = [
        (1, 0, Unrelated),
        (10, 1, Launcher),
        (11, 10, Launcher),
        (12, 11, MARKED),
        (13, 12, Unrelated),
        (14, 13, MARKED),
    ];
    assert_eq!(left(&processes, 1), [] as [i32; 0]);
}

#[test]
fn copied_mark_of_running_job_is_not_listed() {
    use ProcessRelation::{Launcher, Unrelated};
    let mut processes = vec![(1, 0, Unrelated), (10, 1, Launcher), (12, 10, MARKED), (30, 1, LEAKED)];
    assert_eq!(left(&processes, 1), [] as [i32; 0]);
    processes.retain(|process| process.0 != 12);
    assert_eq!(left(&processes, 1), [30], "nothing shows that this launcher has the job");
}

#[test]
fn kept_process_protects_descendants_of_same_job() {
    use ProcessRelation::Unrelated;
    let of_another = ProcessRelation::Marked { job: OTHER, evidence: SURE, kept: false };
    let processes =
        [(1, 0, Unrelated), (10, 1, KEPT), (11, 10, MARKED), (12, 10, of_another), (13, 1, MARKED)];
    assert_eq!(left(&processes, 1), [12, 13]);
}

#[test]
fn calling_process_and_its_ancestors_are_not_listed() {
    use ProcessRelation::Unrelated;
    let processes = [(1, 0, Unrelated), (10, 1, MARKED), (11, 10, MARKED), (12, 10, MARKED)];
    assert_eq!(left(&processes, 11), [12]);
}

#[test]
fn mark_evidence_extends_to_descendants_of_same_job() {
    use ProcessRelation::Unrelated;
    let of_another = ProcessRelation::Marked { job: OTHER, evidence: MarkEvidence::Environment, kept: false };
    let processes = [
        (1, 0, Unrelated),
        (10, 1, MARKED),
        (11, 10, Unrelated),
        (12, 11, LEAKED),
        (13, 12, of_another),
        (20, 1, LEAKED),
        (21, 20, LEAKED),
        (22, 20, MARKED),
    ];
    let doubt = MarkEvidence::Environment;
    let found = [(10, SURE), (12, SURE), (13, doubt), (20, doubt), (21, doubt), (22, SURE)];
    assert_eq!(left_with_evidence(&processes, 1), found);
}

#[test]
fn process_without_evidence_is_ended_only_by_force() {
    let ends = |mode| {
        [SURE, MarkEvidence::Environment]
            .map(|evidence| GcRequest { mode, format: OutputFormat::Text }.ends_process(evidence))
    };
    assert_eq!(
        [GcMode::List, GcMode::End, GcMode::EndAll].map(ends),
        [[false, false], [true, false], [true, true]]
    );
}

#[test]
fn circular_parent_list_terminates() {
    let processes = [(10, 11, MARKED), (11, 10, MARKED), (12, 12, MARKED)];
    assert_eq!(left(&processes, 1), [10, 11, 12]);
}

fn leftover(pid: i32, age: u64, fate: GcOutcome) -> Leftover {
    let (age, command) = (Duration::from_secs(age), "train\x1b[31m.py --fast".to_owned());
    Leftover { pid, job: JOB, evidence: SURE, age, command, fate }
}

#[test]
fn text_report_has_table_and_summary() {
    let report = |processes, mode| {
        render(&GcReport { processes, paths: Vec::new() }, &GcRequest { mode, format: OutputFormat::Text })
    };
    assert_eq!(report(Vec::new(), GcMode::End), "nothing is left of jobs without a launcher\n");
    assert_eq!(
        report(vec![leftover(7, 11_530, GcOutcome::Listed)], GcMode::List),
        "     PID  JOB                                        AGE  COMMAND\n       7  \
         00000000-0000-0000-0000-000000000001     3h12m  train.py --fast\n1 process left; `rankrun gc` ends them\n"
    );
    let mixed = vec![
        leftover(7, 59, GcOutcome::Ended),
        leftover(8, 61, GcOutcome::Killed),
        leftover(9, 90_000, GcOutcome::Alive),
    ];
    let text = report(mixed, GcMode::End);
    assert!(text.ends_with(
        "2 processes ended, 1 by SIGKILL\npid 9 survived SIGKILL for 5 s, probably stuck in the kernel\n"
    ));
    assert!(text.contains("  1m01s  ") && text.contains("  1d01h  "), "{text}");
}

#[test]
fn uncertain_process_is_listed_separately_until_ended() {
    let doubtful = |fate| Leftover { evidence: MarkEvidence::Environment, ..leftover(8, 1, fate) };
    let report = |processes, mode| {
        render(&GcReport { processes, paths: Vec::new() }, &GcRequest { mode, format: OutputFormat::Text })
    };
    let text = report(vec![leftover(7, 1, GcOutcome::Ended), doubtful(GcOutcome::Listed)], GcMode::End);
    let [first, second] =
        ["1 process ended\n     PID", "1 process carries the mark"].map(|part| text.find(part));
    assert!(first.is_some() && first < second, "{text}");
    assert!(text.ends_with("`rankrun gc --force` ends it too\n"), "{text}");
    let text = report(vec![doubtful(GcOutcome::Ended)], GcMode::EndAll);
    assert!(text.ends_with("train.py --fast\n1 process ended\n"), "{text}");
    let text = report(vec![doubtful(GcOutcome::Listed), doubtful(GcOutcome::Listed)], GcMode::List);
    assert!(text.contains("2 processes carry the mark") && !text.contains(" left"), "{text}");
}

fn folder(fate: PathOutcome) -> LeftPath {
    LeftPath {
        path: "/dev/shm/t\x1b[1m".into(),
        kind: PathKind::ErrorFiles,
        age: Duration::from_secs(61),
        fate,
    }
}

#[test]
fn paths_have_separate_table_and_summary() {
    let report = |outcomes: &[PathOutcome], mode| {
        let paths = outcomes.iter().cloned().map(folder).collect();
        render(&GcReport { processes: Vec::new(), paths }, &GcRequest { mode, format: OutputFormat::Text })
    };
    assert_eq!(
        report(&[PathOutcome::Listed], GcMode::List),
        "     AGE  LEFT BY                   PATH\n   1m01s  a dead job                /dev/shm/t\n\
         1 path left; `rankrun gc` clears them away\n"
    );
    let text = report(
        &[PathOutcome::Removed, PathOutcome::PutBack, PathOutcome::Failed("busy".to_owned())],
        GcMode::End,
    );
    assert!(text.ends_with("1 path removed, 1 put back\n`rankrun shim on` or `rankrun shim off` does what was interrupted\ncannot remove `/dev/shm/t`: busy\n"), "{text}");
    let failed =
        GcReport { processes: Vec::new(), paths: vec![folder(PathOutcome::Failed("busy".to_owned()))] };
    assert!(!failed.is_clean());
}

#[test]
fn json_report_is_one_object() {
    let collected = GcReport {
        processes: vec![leftover(7, 60, GcOutcome::Ended)],
        paths: vec![folder(PathOutcome::Removed)],
    };
    let json = render(&collected, &GcRequest { mode: GcMode::End, format: OutputFormat::Json });
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let process = &value["processes"][0];
    assert_eq!((&process["pid"], &process["age_seconds"]), (&7.into(), &60.into()));
    assert_eq!(process["job"], JOB.to_string());
    assert_eq!((&process["fate"], &process["evidence"]), (&"ended".into(), &"inherited".into()));
    assert_eq!(
        (&value["paths"][0]["kind"], &value["paths"][0]["fate"]),
        (&"error_files".into(), &"removed".into())
    );
    assert!(collected.is_clean());
}
