use super::*;

const JOB: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);
const MARKED: Standing = Standing::Marked { job: JOB, kept: false };
const KEPT: Standing = Standing::Marked { job: JOB, kept: true };

/// pid, parent, standing
fn left(processes: &[(i32, i32, Standing)], me: i32) -> Vec<i32> {
    let seen: Vec<Seen> = processes
        .iter()
        .map(|(pid, parent, standing)| Seen {
            pid: *pid,
            parent: *parent,
            started: 0,
            standing: standing.clone(),
        })
        .collect();
    super::left(&seen, me).into_iter().map(|(process, _)| process.pid).collect()
}

#[test]
fn orphans_are_found_with_what_is_below_them() {
    use Standing::Stranger;
    let processes = [
        (1, 0, Stranger),
        (30, 1, MARKED),
        (20, 30, MARKED),
        (21, 30, Stranger),
        (22, 21, Standing::Marked { job: OTHER, kept: false }),
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
fn what_is_kept_is_kept_with_what_is_below_it_in_the_same_job() {
    use Standing::Stranger;
    let of_another = Standing::Marked { job: OTHER, kept: false };
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
fn a_list_that_goes_in_a_circle_has_an_end() {
    let processes = [(10, 11, MARKED), (11, 10, MARKED), (12, 12, MARKED)];
    assert_eq!(left(&processes, 1), [10, 11, 12]);
}

fn leftover(pid: i32, age: u64, fate: Fate) -> Leftover {
    let (age, command) = (Duration::from_secs(age), "train\x1b[31m.py --fast".to_owned());
    Leftover { pid, job: JOB, age, command, fate }
}

#[test]
fn people_get_a_table_and_a_sentence() {
    let told = |processes, deed| render(&Collected { processes }, &Request { deed, form: Form::Text });
    assert_eq!(told(Vec::new(), Deed::End), "nothing is left of jobs whose launcher is gone\n");
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
fn programs_get_an_object() {
    let collected = Collected { processes: vec![leftover(7, 60, Fate::Ended)] };
    let json = render(&collected, &Request { deed: Deed::End, form: Form::Json });
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let process = &value["processes"][0];
    assert_eq!((&process["pid"], &process["age_seconds"]), (&7.into(), &60.into()));
    assert_eq!(process["job"], JOB.to_string());
    assert_eq!(process["fate"], "ended");
    assert!(collected.is_clean());
}
