//! One visible device per worker: `--virtual-local-rank` (contract 1.12).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::error::{CliError, SettingError};
use super::settings::Settings;
use super::torchrun::VIRTUAL_LOCAL_RANK;
use crate::spec::VirtualDevices;

const HIP: &str = "HIP_VISIBLE_DEVICES";
const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// The device of each worker: the one that the launcher's own list has in its place, else the one of its number.
///
/// # Errors
/// The list is too short.
pub(super) fn resolve_virtual_devices(
    settings: &Settings<'_>,
    workers: LocalWorldSize,
) -> Result<Option<VirtualDevices>, CliError> {
    if !settings.flag(&VIRTUAL_LOCAL_RANK)? {
        return Ok(None);
    }
    let hip = settings.facts.filled_variable(HIP);
    let (variable, list) = match hip {
        Some(list) => (HIP, Some(list)),
        None => (CUDA, settings.facts.variable(CUDA)),
    };
    let wanted = workers.get();
    let Some(list) = list else {
        let devices = (0..wanted).map(|rank| OsString::from(rank.to_string())).collect();
        return Ok(Some(VirtualDevices { hip: false, devices }));
    };
    let devices: Vec<OsString> = split_list(list).take(LocalRank(wanted).index()).collect();
    match u32::try_from(devices.len()) {
        Ok(there) if there < wanted => {
            let value = list.to_string_lossy().into_owned();
            Err(SettingError::TooFewDevices { variable, value, local_rank: LocalRank(there) }.into())
        }
        _ => Ok(Some(VirtualDevices { hip: hip.is_some(), devices })),
    }
}

fn split_list(list: &OsStr) -> impl Iterator<Item = OsString> {
    list.as_bytes().split(|byte| *byte == b',').map(|item| OsStr::from_bytes(item.trim_ascii()).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, interpret};
    use crate::facts::fake::FakeWorld;

    fn devices(count: &str, environment: &[(&str, &str)]) -> Result<(bool, Vec<OsString>), (u8, String)> {
        let line = ["torchrun", "--nproc-per-node", count, "--virtual-local-rank", "--no-python", "true"];
        let mut environment = environment.to_vec();
        environment.push(("PATH", "/usr/bin"));
        let facts = FakeWorld::new().program("/usr/bin/true").facts(&environment);
        match interpret(&line.map(OsString::from), &facts) {
            Ok(Command::Launch(launch)) => {
                launch.spec.virtual_devices.map(|found| (found.hip, found.devices)).ok_or((0, String::new()))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err((error.exit_code(), error.to_string())),
        }
    }

    fn is(hip: bool, devices: &[&str]) -> Result<(bool, Vec<OsString>), (u8, String)> {
        Ok((hip, devices.iter().map(OsString::from).collect()))
    }

    #[test]
    fn each_worker_has_the_device_in_its_place() {
        assert_eq!(devices("2", &[(CUDA, "3,5")]), is(false, &["3", "5"]));
        assert_eq!(devices("2", &[(CUDA, " GPU-a , 5,7")]), is(false, &["GPU-a", "5"]));
        assert_eq!(devices("2", &[]), is(false, &["0", "1"]));
        assert_eq!(devices("2", &[(HIP, "6,4"), (CUDA, "0")]), is(true, &["6", "4"]));
        assert_eq!(devices("1", &[(HIP, ""), (CUDA, "9")]), is(false, &["9"]));
        assert_eq!(devices("1", &[(CUDA, "")]), is(false, &[""]));
    }

    #[test]
    fn a_list_that_is_too_short_names_the_rank() {
        let message = |name: &str, list: &str, rank: u32| {
            Err((1, format!("`{name}` is `{list}`, which has no device for local rank {rank}")))
        };
        assert_eq!(devices("2", &[(CUDA, "3")]), message(CUDA, "3", 1));
        assert_eq!(devices("2", &[(CUDA, "")]), message(CUDA, "", 1));
        assert_eq!(devices("4", &[(HIP, "1,2"), (CUDA, "0,1,2,3")]), message(HIP, "1,2", 2));
    }
}
