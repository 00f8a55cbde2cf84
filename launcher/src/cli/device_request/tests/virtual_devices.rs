//! torch's `--virtual-local-rank`.

use super::*;

const HIP: &str = "HIP_VISIBLE_DEVICES";
const CUDA: &str = "CUDA_VISIBLE_DEVICES";

fn devices(count: &str, environment: &[(&str, &str)]) -> Result<(bool, Vec<OsString>), (u8, String)> {
    let line = ["torchrun", "--nproc-per-node", count, "--virtual-local-rank", "--no-python", "true"];
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let facts = FakeWorld::default().program("/usr/bin/true").facts(&environment);
    match interpret(&line.map(OsString::from), &facts) {
        Ok(Command::Launch(launch)) => {
            let of = |name| {
                let variables =
                    launch.spec.devices.workers.iter().flat_map(|worker| worker.variables.clone());
                variables.filter(move |(set, _)| *set == name).filter_map(|(_, value)| value)
            };
            Ok((of(HIP).next().is_some(), of(CUDA).collect()))
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err((error.exit_code(), error.to_string())),
    }
}

fn is(hip: bool, devices: &[&str]) -> Result<(bool, Vec<OsString>), (u8, String)> {
    Ok((hip, devices.iter().map(OsString::from).collect()))
}

#[test]
fn virtual_local_rank_takes_device_by_position() {
    assert_eq!(devices("2", &[(CUDA, "3,5")]), is(false, &["3", "5"]));
    assert_eq!(devices("2", &[(CUDA, " GPU-a , 5,7")]), is(false, &["GPU-a", "5"]));
    assert_eq!(devices("2", &[]), is(false, &["0", "1"]));
    assert_eq!(devices("2", &[(HIP, "6,4"), (CUDA, "0")]), is(true, &["6", "4"]));
    assert_eq!(devices("1", &[(HIP, ""), (CUDA, "9")]), is(false, &["9"]));
    assert_eq!(devices("1", &[(CUDA, "")]), is(false, &[""]));
}

#[test]
fn short_device_list_error_names_local_rank() {
    let message = |name: &str, list: &str, rank: u32| {
        Err((1, format!("`{name}` is `{list}`, which has no device for local rank {rank}")))
    };
    assert_eq!(devices("2", &[(CUDA, "3")]), message(CUDA, "3", 1));
    assert_eq!(devices("2", &[(CUDA, "")]), message(CUDA, "", 1));
    assert_eq!(devices("4", &[(HIP, "1,2"), (CUDA, "0,1,2,3")]), message(HIP, "1,2", 2));
}
