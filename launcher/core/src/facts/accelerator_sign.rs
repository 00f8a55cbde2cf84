//! Signs of an accelerator: a few names in the file system that say whether a probe is worth starting. Opens no device
//! and no library.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::device::DeviceType;
use crate::facts::{FileKind, World};

/// Names in `/dev` that the vendors' drivers make: NVIDIA, WSL, NVIDIA's embedded boards, AMD, any GPU, Habana,
/// Ascend.
const DEVICES: [&str; 8] = [
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/nvhost-ctrl-gpu",
    "/dev/nvmap",
    "/dev/kfd",
    "/dev/dri",
    "/dev/accel",
    "/dev/davinci_manager",
];

/// Where a driver puts its libraries: distributions, images for containers, WSL, NixOS.
const DRIVER_FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

const NVML: &str = "libnvidia-ml.so.1";

/// The most folders of `LD_LIBRARY_PATH` that are searched.
const MAX_LIBRARY_FOLDERS: usize = 64;

/// Whether NVIDIA's library is in `LD_LIBRARY_PATH` or where a driver puts it.
pub(super) fn has_library(world: &dyn World, library_path: Option<&OsStr>) -> bool {
    let has_library = |folder: &Path| world.kind(&folder.join(NVML)) != FileKind::Missing;
    let path = library_path.map(OsStr::as_bytes).unwrap_or_default();
    // The loader takes an empty item for the working folder, and both separators.
    let folders = path.split(|byte| matches!(byte, b':' | b';')).take(MAX_LIBRARY_FOLDERS);
    let mut folders = folders.map(|item| match item {
        [] => Path::new("."),
        name => Path::new(OsStr::from_bytes(name)),
    });
    (!path.is_empty() && folders.any(has_library))
        || DRIVER_FOLDERS.iter().any(|folder| has_library(Path::new(folder)))
}

/// Whether a driver has made a device node for devices of this type. A library alone does not mean a card: computers
/// without one often share the image of computers with cards.
pub(super) fn has_node(world: &dyn World, kind: DeviceType) -> bool {
    let nodes: &[&str] = match kind {
        DeviceType::Cuda => &DEVICES[..4],
        DeviceType::Rocm => &["/dev/kfd"],
        DeviceType::Xpu => &["/dev/dri"],
        DeviceType::Hpu => &["/dev/accel"],
        DeviceType::Npu => &["/dev/davinci_manager"],
        DeviceType::Mps => return cfg!(target_os = "macos"),
        DeviceType::Cpu => &[],
    };
    nodes.iter().any(|node| world.kind(Path::new(node)) != FileKind::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::fake::FakeWorld;

    fn has_sign_with_path(world: &FakeWorld, library_path: Option<&str>) -> bool {
        DeviceType::ALL.into_iter().any(|kind| has_node(world, kind))
            || has_library(world, library_path.map(OsStr::new))
    }

    #[test]
    fn machine_without_accelerators_has_no_sign() {
        let world = FakeWorld::default().folder("/dev").device("/dev/null").file("/usr/lib/libc.so.6", b"");
        for path in [None, Some(""), Some("/opt/lib:/usr/lib"), Some(":"), Some("::;")] {
            assert!(!has_sign_with_path(&world, path), "{path:?}");
        }
    }

    #[test]
    fn each_device_node_is_a_sign() {
        for device in DEVICES {
            assert!(has_sign_with_path(&FakeWorld::default().device(device), None), "{device}");
        }
        assert!(has_sign_with_path(&FakeWorld::default().folder("/dev/dri"), None));
        // A card without its control node cannot be used.
        assert!(!has_sign_with_path(&FakeWorld::default().device("/dev/nvidia0"), None));
    }

    #[test]
    fn nvml_in_library_path_is_a_sign() {
        let world = FakeWorld::default().file("/opt/fake/libnvidia-ml.so.1", b"");
        assert!(has_sign_with_path(&world, Some("/nowhere:/opt/fake")));
        assert!(has_sign_with_path(&world, Some("/opt/fake;/nowhere")));
        assert!(!has_sign_with_path(&world, Some("/opt")));
        assert!(!has_sign_with_path(&world, None));
        let here = FakeWorld::default().file("/job/libnvidia-ml.so.1", b"");
        assert!(has_sign_with_path(&here, Some("/nowhere:")));
        assert!(!has_sign_with_path(&here, Some("")));
        for folder in DRIVER_FOLDERS {
            let path: &'static str = format!("{folder}/{NVML}").leak();
            assert!(has_sign_with_path(&FakeWorld::default().file(path, b""), None), "{folder}");
        }
    }

    #[test]
    fn library_without_device_node_is_not_a_device() {
        let world = FakeWorld::default().file("/usr/lib/libnvidia-ml.so.1", b"");
        assert!(has_sign_with_path(&world, None) && !has_node(&world, DeviceType::Cuda));
        assert!(has_node(&FakeWorld::default().device("/dev/nvidiactl"), DeviceType::Cuda));
        let amd = FakeWorld::default().device("/dev/kfd").folder("/dev/dri");
        let kinds = DeviceType::ALL.into_iter().filter(|kind| has_node(&amd, *kind)).collect::<Vec<_>>();
        assert_eq!(kinds, [DeviceType::Rocm, DeviceType::Xpu]);
    }

    #[test]
    fn long_library_path_is_searched_up_to_a_limit() {
        let world = FakeWorld::default().file("/far/libnvidia-ml.so.1", b"");
        let path = format!("{}/far", "/nowhere:".repeat(100_000));
        assert!(!has_sign_with_path(&world, Some(&path)));
    }
}
