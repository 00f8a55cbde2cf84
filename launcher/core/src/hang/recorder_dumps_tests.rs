#![expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]

use super::*;
use crate::hang::flight_recorder::parse_pickled_trace;
use crate::hang::flight_recorder::recorded::dump;
use crate::hang::sentence::collectives_sentence;
use crate::spec::Entrypoint;
use crate::spec::fake::example;

fn spec(dir: LogDir, hang_timeout: Option<u64>) -> LaunchSpec {
    let entrypoint = Entrypoint::Script { python: "/usr/bin/python3".into(), script: "train.py".into() };
    let mut spec = LaunchSpec { entrypoint, ..example() };
    spec.logs.dir = dir;
    spec.hang.timeout = hang_timeout.map(Duration::from_secs);
    spec
}

fn names(spec: &LaunchSpec, device: DeviceType, set: &[&str]) -> Vec<&'static str> {
    let environment: Vec<_> = set.iter().map(|name| ((*name).into(), "x".into())).collect();
    let variables = recorder_variables(spec, device, Some(Path::new("/logs/attempt_0")), &environment);
    variables.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn variables_of_user_stay_under_each_name() {
    let kept = spec(LogDir::At("/logs".into()), Some(60));
    let all = [DUMP_STEM, BUFFER_SIZE, DUMP_ON_TIMEOUT, STACK_TRACE];
    assert_eq!(names(&kept, DeviceType::Cuda, &[]), all);
    assert_eq!(names(&kept, DeviceType::Cuda, &["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]), all[1..]);
    assert_eq!(names(&kept, DeviceType::Cuda, &[BUFFER_SIZE]), [all[0], all[2], all[3]]);
    assert!(names(&kept, DeviceType::Cuda, &all).is_empty());
    assert_eq!(names(&kept, DeviceType::Cpu, &[]), [BUFFER_SIZE]);
}

#[test]
fn dumps_are_only_in_folder_that_stays() {
    let without_limit = spec(LogDir::Temporary("/tmp".into()), None);
    assert_eq!(names(&without_limit, DeviceType::Cuda, &[]), [DUMP_STEM]);
    for dir in [LogDir::ErrorFiles("/dev/shm".into()), LogDir::Off] {
        assert!(names(&spec(dir, None), DeviceType::Cuda, &[]).is_empty());
    }
    let mut without_hooks = spec(LogDir::At("/logs".into()), Some(60));
    without_hooks.options.no_hooks = true;
    assert!(names(&without_hooks, DeviceType::Cuda, &[]).is_empty());
}

#[test]
fn stem_and_path_of_dump_agree() {
    let spec = spec(LogDir::At("/logs".into()), None);
    let variables = recorder_variables(&spec, DeviceType::Cuda, Some(Path::new("/logs/attempt_0")), &[]);
    let mut written = variables[0].1.clone();
    written.push("7");
    assert_eq!(dump_path(Path::new("/logs/attempt_0"), Rank(7)), Path::new(&written));
}

#[test]
fn dumps_tell_what_ranks_waited_in() {
    let now = Instant::now();
    let of = |rank: u32| (Rank(rank), parse_pickled_trace(dump(rank as usize)).unwrap());
    let text = |dumps: Vec<(Rank, Groups)>| collectives_sentence(&judge_dumps(dumps, false, now)?);
    assert_eq!(
        text(vec![of(0), of(1), of(2)]).as_deref(),
        Some("ranks 0, 1 wait in all_reduce #5; rank 2 has not called it")
    );
    assert_eq!(text(vec![of(1)]).as_deref(), Some("rank 1 waits in all_reduce #5"));
    assert_eq!(text(vec![of(2)]), None);
    assert_eq!(text(Vec::new()), None);
}
