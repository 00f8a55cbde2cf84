//! The bytes between the local launcher and the agent of a host. Pure.
//!
//! The agent says hello: one line on its standard output. The launcher answers on the agent's standard input by frames: a
//! length of four bytes, the highest first, and JSON. The first frame is the launch; each further one is a signal. The end of
//! that input, however it comes, is a stop too.

use serde::{Deserialize, Serialize};

use crate::plain::plain;

/// The word that makes a launcher the agent of a host.
pub const NODE_AGENT: &str = "--rankrun-ssh-node";
/// Version of the frames. It changes with them; the hello line stays readable.
pub const PROTOCOL: u32 = 1;
/// The longest frame, in bytes: more than the kernel takes as arguments and environment of a program.
pub const MAX_FRAME: usize = 8 << 20;
/// What stands in front of the hello; a login shell may print lines before.
const HELLO: &[u8] = b"rankrun-ssh-node ";
/// The longest version that is shown.
const MAX_VERSION: usize = 40;

/// What an agent says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The agent's [`PROTOCOL`].
    pub protocol: u32,
    /// Its version of rankrun.
    pub version: String,
    /// A TCP port that the agent keeps free for the store of the job, if it should have it.
    #[serde(default)]
    pub port: u16,
    /// The same for agents that see the same processes, network and host name: the host has two names then.
    #[serde(default)]
    pub machine: String,
}

impl Hello {
    /// The line of the hello.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).unwrap_or_default();
        [b"\n", HELLO, &json, b"\n"].concat()
    }

    /// The hello of a line without its end; nothing if the line is another program's.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut hello: Self = serde_json::from_slice(line.strip_prefix(HELLO)?).ok()?;
        hello.version = plain(&hello.version).chars().take(MAX_VERSION).collect();
        Some(hello)
    }
}

/// A frame for an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentFrame {
    /// Start this.
    Launch(NodeLaunch),
    /// The launcher was told to stop by the signal of this number.
    Stop {
        /// The number on Linux.
        signal: i32,
    },
    /// The launcher got the signal of this number for the workers; the job goes on.
    Forward {
        /// The number on Linux.
        signal: i32,
    },
}

/// What an agent starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLaunch {
    /// The working folder.
    pub directory: String,
    /// Variables in addition to those that ssh gives.
    pub environment: Vec<(String, String)>,
    /// The words of the launch, behind `rankrun`.
    pub words: Vec<String>,
}

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is out of bounds.
    #[error("a frame of {0} bytes is longer than {MAX_FRAME}")]
    TooLong(usize),
    /// The text has another form.
    #[error("a frame cannot be read")]
    Json(#[source] serde_json::Error),
}

impl AgentFrame {
    /// The frame with its length.
    ///
    /// # Errors
    /// It is too long.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let json = serde_json::to_vec(self).map_err(FrameError::Json)?;
        let length = u32::try_from(json.len()).ok().filter(|_| json.len() <= MAX_FRAME);
        let length = length.ok_or(FrameError::TooLong(json.len()))?;
        Ok([&length.to_be_bytes()[..], &json].concat())
    }

    /// The number of bytes behind this length.
    ///
    /// # Errors
    /// It is out of bounds.
    pub fn length_of(header: [u8; 4]) -> Result<usize, FrameError> {
        let length = usize::try_from(u32::from_be_bytes(header)).unwrap_or(usize::MAX);
        if length <= MAX_FRAME { Ok(length) } else { Err(FrameError::TooLong(length)) }
    }

    /// The frame of the bytes behind the length.
    ///
    /// # Errors
    /// They are another text.
    pub fn decode(json: &[u8]) -> Result<Self, FrameError> {
        serde_json::from_slice(json).map_err(FrameError::Json)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn launch() -> AgentFrame {
        AgentFrame::Launch(NodeLaunch {
            directory: "/job".to_owned(),
            environment: vec![("TOKEN".to_owned(), "a b".to_owned())],
            words: vec!["--".to_owned(), "train.py".to_owned()],
        })
    }

    #[test]
    fn frames_are_read_back() {
        for frame in [launch(), AgentFrame::Stop { signal: 15 }, AgentFrame::Forward { signal: 10 }] {
            let bytes = frame.encode().unwrap();
            let (header, json) = bytes.split_first_chunk().unwrap();
            assert_eq!(AgentFrame::length_of(*header).unwrap(), json.len());
            assert_eq!(AgentFrame::decode(json).unwrap(), frame);
        }
    }

    #[test]
    fn long_frame_is_refused_on_both_sides() {
        let length = u32::try_from(MAX_FRAME + 1).unwrap();
        assert!(AgentFrame::length_of(length.to_be_bytes()).is_err());
        let words = vec!["x".repeat(MAX_FRAME)];
        let long = AgentFrame::Launch(NodeLaunch { directory: String::new(), environment: vec![], words });
        assert!(matches!(long.encode(), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn hello_is_found_behind_lines_of_a_shell() {
        let hello = Hello { protocol: 1, version: "0.1.0".to_owned(), port: 40_000, machine: "m".to_owned() };
        let text = [b"welcome".to_vec(), hello.line()].concat();
        let found: Vec<Hello> = text.split(|byte| *byte == b'\n').filter_map(Hello::parse).collect();
        assert_eq!(found, [hello]);
        let line = b"rankrun-ssh-node {\"protocol\":9,\"version\":\"\\u001b[31m9\",\"more\":1}";
        assert_eq!(
            Hello::parse(line).unwrap(),
            Hello { protocol: 9, version: "9".to_owned(), port: 0, machine: String::new() }
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = AgentFrame::decode(&bytes);
            let _ = Hello::parse(&[HELLO, &bytes].concat());
        }
    }
}
