//! The explanation as one JSON object, for programs. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Explanation, LaunchValue, Pending, Text};

/// The object, with a newline behind it.
pub(super) fn render(explanation: &Explanation) -> Vec<u8> {
    // Every key is a string and every number finite: the spec's durations are.
    let mut json = serde_json::to_vec_pretty(explanation).unwrap_or_default();
    json.push(b'\n');
    json
}

fn serialize_text<S: Serializer>(text: &OsStr, serializer: S) -> Result<S::Ok, S::Error> {
    match text.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => {
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry("bytes", text.as_bytes())?;
            map.end()
        }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_text(&self.0, serializer)
    }
}

impl Serialize for LaunchValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(text) => serialize_text(text, serializer),
            Self::AtLaunch(pending) => pending.serialize(serializer),
        }
    }
}

impl Serialize for Pending {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = match self {
            Self::FreePort => "free_port",
            Self::RunId => "run_id",
            Self::Agreed => "agreed_by_the_nodes",
            Self::Interface => "interface_of_the_connection",
            Self::Mark => "mark",
            Self::Path(_) => "path",
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("at_launch", kind)?;
        if let Self::Path(path) = self {
            map.serialize_entry("pattern", &Text(path.clone().into_os_string()))?;
        }
        map.end()
    }
}
