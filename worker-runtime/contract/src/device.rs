//! The device of a worker, as the launcher tells it and as a training program names it.

use std::fmt;
use std::str::FromStr;

use crate::rank::ParseIdError;

/// A device, with its index as this process counts those that it sees. Its text is `cuda:1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processors. They are one device; the index tells the workers or threads on them apart.
    Cpu(usize),
    /// A GPU of NVIDIA's.
    Cuda(usize),
    /// A GPU of AMD's, which PyTorch calls `cuda`, too.
    Rocm(usize),
    /// A GPU of Intel's.
    Xpu(usize),
    /// A Gaudi of Intel's.
    Hpu(usize),
    /// An Ascend of Huawei's.
    Npu(usize),
    /// Apple's GPU.
    Mps(usize),
    /// A kind that this version does not know: the word of a later launcher, or of a framework.
    Other {
        /// The word, in lower case, such as `tpu`.
        kind: String,
        /// Its index.
        index: usize,
    },
}

/// Makes a device of a kind from its index.
type Constructor = fn(usize) -> Device;

impl Device {
    /// The words of all known kinds, which are those of `--device-type`.
    const KINDS: [(&'static str, Constructor); 7] = [
        ("cpu", Self::Cpu),
        ("cuda", Self::Cuda),
        ("rocm", Self::Rocm),
        ("xpu", Self::Xpu),
        ("hpu", Self::Hpu),
        ("npu", Self::Npu),
        ("mps", Self::Mps),
    ];

    /// Its kind, as the launcher's `--device-type` says it.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Cuda(_) => "cuda",
            Self::Rocm(_) => "rocm",
            Self::Xpu(_) => "xpu",
            Self::Hpu(_) => "hpu",
            Self::Npu(_) => "npu",
            Self::Mps(_) => "mps",
            Self::Other { kind, .. } => kind,
        }
    }

    /// Its index among those of its kind that this process sees.
    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::Cpu(index)
            | Self::Cuda(index)
            | Self::Rocm(index)
            | Self::Xpu(index)
            | Self::Hpu(index)
            | Self::Npu(index)
            | Self::Mps(index)
            | Self::Other { index, .. } => *index,
        }
    }

    /// The device of a kind with this index; `None` where `kind` is not a word in lower case.
    #[must_use]
    pub fn new(kind: &str, index: usize) -> Option<Self> {
        let known = Self::KINDS.iter().find(|(known_kind, _)| *known_kind == kind);
        if let Some((_, device)) = known {
            return Some(device(index));
        }
        let is_word = kind.starts_with(|first: char| first.is_ascii_lowercase())
            && kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        is_word.then(|| Self::Other { kind: kind.to_owned(), index })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.index())
    }
}

/// `cuda:1`; a number alone is a CUDA device, as in torch's `device_ids`.
impl FromStr for Device {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (kind, index) = text.split_once(':').unwrap_or(("cuda", text));
        // `parse` takes a sign, too.
        let is_number = index.bytes().all(|byte| byte.is_ascii_digit());
        let index = index.parse().ok().filter(|_| is_number);
        index.and_then(|index| Self::new(kind, index)).ok_or_else(|| ParseIdError {
            text: text.to_owned(),
            expected: "a device: its kind and its index, such as `cuda:0`",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_text_has_kind_and_index() {
        for (kind, device) in Device::KINDS {
            let device = device(3);
            assert_eq!((device.kind(), device.index()), (kind, 3));
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("tpu:1".parse(), Ok(Device::Other { kind: "tpu".to_owned(), index: 1 }));
        assert_eq!("2".parse(), Ok(Device::Cuda(2)));
    }

    #[test]
    fn invalid_device_text_is_refused() {
        for text in ["", "cuda", "cuda:", ":0", "cuda:-1", "+1", "cuda:1:2", "CUDA:0", "0x1", "1cuda:0"] {
            let error = text.parse::<Device>().unwrap_err();
            let expected = "is not a device: its kind and its index, such as `cuda:0`";
            assert_eq!(error.to_string(), format!("`{text}` {expected}"));
        }
    }
}
