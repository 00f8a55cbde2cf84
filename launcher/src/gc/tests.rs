use super::*;
use crate::gc::paths::PathKind;

const JOB: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);
const SURE: Evidence = Evidence::Inherited;
const MARKED: Standing = Standing::Marked { job: JOB, evidence: SURE, kept: false };
const KEPT: Standing = Standing::Marked { job: JOB, evidence: SURE, kept: true };
const LEAKED: Standing = Standing::Marked { job: JOB, evidence: Evidence::Environment, kept: false };

/// Takes (pid, parent, standing) of each process.
fn left(processes: &[(i32, i32, Standing)], me: i32) -> Vec<i32> {
    left_with_evidence(processes, me).into_iter().map(|(pid, _)| pid).collect()
}

fn left_with_evidence(processes: &[(i32, i32, Standing)], me: i32) -> Vec<(i32, Evidence)> {
    let seen: Vec<Seen> = processes
        .iter()
        .map(|(pid, parent, standing)| Seen {
            pid: *pid,
            parent: *parent,
            started: 0,
            standing: standing.clone(),
        })
        .collect();
    super::left(&seen, me).into_iter().map(|(process, _, evidence)| (process.pid, evidence)).collect()
}

#[test]
fn orphans_are_found_with_what_is_below_them() {
    use Standing::Stranger;
    let processes = [
        (1, 0, Stranger),
        (30, 1, MARKED),
        (20, 30, MARKED),
        (21, 30, Stranger),
        (22, 21, Standing::Marked { job: OTHER, evidence: SURE, kept: false }),
    ];
    assert_eq!(left(&processes, 1), [20, 22, 30]);
}

#[test]
fn whoever_is_below_a_launcher_belongs_to_a_job_that_runs() {
    use Standing::{Launcher, Stranger};
    let processes = [
        (1, 0, Stranger),
        (10, 1, Launcher),
        (11, 10, Launcher),
        (12, 11, MARKED),
        (13, 12, Stranger),
        (14, 13, MARKED),
    ];
    assert_eq!(left(&processes, 1), [] as [i32; 0]);
}

#[test]
fn copied_mark_of_a_job_that_runs_is_not_listed() {
    use Standing::{Launcher, Stranger};
    let mut processes = vec![(1, 0, Stranger), (10, 1, Launcher), (12, 10, MARKED), (30, 1, LEAKED)];
    assert_eq!(left(&processes, 1), [] as [i32; 0]);
    processes.retain(|process| process.0 != 12);
    assert_eq!(left(&processes, 1), [30], "nothing shows that this launcher has the job");
}

#[test]
fn what_is_kept_is_kept_with_what_is_below_it_in_the_same_job() {
    use Standing::Stranger;
    let of_another = Standing::Marked { job: OTHER, evidence: SURE, kept: false };
    let processes =
        [(1, 0, Stranger), (10, 1, KEPT), (11, 10, MARKED), (12, 10, of_another), (13, 1, MARKED)];
    assert_eq!(left(&processes, 1), [12, 13]);
}

#[test]
fn whoever_asks_is_spared_with_those_above() {
    use Standing::Stranger;
    let processes = [(1, 0, Stranger), (10, 1, MARKED), (11, 10, MARKED), (12, 10, MARKED)];
    assert_eq!(left(&processes, 11), [12]);
}

#[test]
fn evidence_passes_from_a_process_to_those_below_it_in_its_job() {
    use Standing::Stranger;
    let of_another = Standing::Marked { job: OTHER, evidence: Evidence::Environment, kept: false };
    let processes = [
        (1, 0, Stranger),
        (10, 1, MARKED),
        (11, 10, Stranger),
        (12, 11, LEAKED),
        (13, 12, of_another),
        (20, 1, LEAKED),
        (21, 20, LEAKED),
        (22, 20, MARKED),
    ];
    let doubt = Evidence::Environment;
    let found = [(10, SURE), (12, SURE), (13, doubt), (20, doubt), (21, doubt), (22, SURE)];
    assert_eq!(left_with_evidence(&processes, 1), found);
}

#[test]
fn without_evidence_only_force_ends_a_process() {
    let ends = |deed| {
        [SURE, Evidence::Environment].map(|evidence| Request { deed, form: Form::Text }.ends(evidence))
    };
    assert_eq!(
        [Deed::List, Deed::End, Deed::EndAll].map(ends),
        [[false, false], [true, false], [true, true]]
    );
}

#[test]
fn a_list_that_goes_in_a_circle_has_an_end() {
    let processes = [(10, 11, MARKED), (11, 10, MARKED), (12, 12, MARKED)];
    assert_eq!(left(&processes, 1), [10, 11, 12]);
}

fn leftover(pid: i32, age: u64, fate: Fate) -> Leftover {
    let (age, command) = (Duration::from_secs(age), "train\x1b[31m.py --fast".to_owned());
    Leftover { pid, job: JOB, evidence: SURE, age, command, fate }
}

#[test]
fn people_get_a_table_and_a_sentence() {
    let told = |processes, deed| {
        render(&Collected { processes, paths: Vec::new() }, &Request { deed, form: Form::Text })
    };
    assert_eq!(told(Vec::new(), Deed::End), "nothing is left of jobs without a launcher\n");
    assert_eq!(
        told(vec![leftover(7, 11_530, Fate::Listed)], Deed::List),
        "     PID  JOB                                        AGE  COMMAND\n       7  \
         00000000-0000-0000-0000-000000000001     3h12m  train.py --fast\n1 process left; `rankrun gc` ends them\n"
    );
    let mixed =
        vec![leftover(7, 59, Fate::Ended), leftover(8, 61, Fate::Killed), leftover(9, 90_000, Fate::Alive)];
    let text = told(mixed, Deed::End);
    assert!(text.ends_with(
        "2 processes ended, 1 by SIGKILL\npid 9 survived SIGKILL for 5 s, probably stuck in the kernel\n"
    ));
    assert!(text.contains("  1m01s  ") && text.contains("  1d01h  "), "{text}");
}

#[test]
fn doubtful_process_is_told_apart_until_it_is_ended() {
    let doubtful = |fate| Leftover { evidence: Evidence::Environment, ..leftover(8, 1, fate) };
    let told = |processes, deed| {
        render(&Collected { processes, paths: Vec::new() }, &Request { deed, form: Form::Text })
    };
    let text = told(vec![leftover(7, 1, Fate::Ended), doubtful(Fate::Listed)], Deed::End);
    let [first, second] =
        ["1 process ended\n     PID", "1 process carries the mark"].map(|part| text.find(part));
    assert!(first.is_some() && first < second, "{text}");
    assert!(text.ends_with("`rankrun gc --force` ends it too\n"), "{text}");
    let text = told(vec![doubtful(Fate::Ended)], Deed::EndAll);
    assert!(text.ends_with("train.py --fast\n1 process ended\n"), "{text}");
    let text = told(vec![doubtful(Fate::Listed), doubtful(Fate::Listed)], Deed::List);
    assert!(text.contains("2 processes carry the mark") && !text.contains(" left"), "{text}");
}

fn folder(fate: PathFate) -> LeftPath {
    LeftPath {
        path: "/dev/shm/t\x1b[1m".into(),
        kind: PathKind::ErrorFiles,
        age: Duration::from_secs(61),
        fate,
    }
}

#[test]
fn paths_have_a_table_and_a_sentence_of_their_own() {
    let told = |fates: &[PathFate], deed| {
        let paths = fates.iter().cloned().map(folder).collect();
        render(&Collected { processes: Vec::new(), paths }, &Request { deed, form: Form::Text })
    };
    assert_eq!(
        told(&[PathFate::Listed], Deed::List),
        "     AGE  LEFT BY                   PATH\n   1m01s  a dead job                /dev/shm/t\n\
         1 path left; `rankrun gc` clears them away\n"
    );
    let text = told(&[PathFate::Removed, PathFate::PutBack, PathFate::Failed("busy".to_owned())], Deed::End);
    assert!(text.ends_with("1 path removed, 1 put back\n`rankrun shim on` or `rankrun shim off` does what was interrupted\ncannot remove `/dev/shm/t`: busy\n"), "{text}");
    let failed =
        Collected { processes: Vec::new(), paths: vec![folder(PathFate::Failed("busy".to_owned()))] };
    assert!(!failed.is_clean());
}

#[test]
fn programs_get_an_object() {
    let collected =
        Collected { processes: vec![leftover(7, 60, Fate::Ended)], paths: vec![folder(PathFate::Removed)] };
    let json = render(&collected, &Request { deed: Deed::End, form: Form::Json });
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
