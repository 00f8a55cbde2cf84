//! Reads the manifests: documents of YAML as JSON, and the pods in them.

use std::fs;

use harness::checkout;
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

/// A manifest with a template of pods.
pub(super) struct Pod {
    pub(super) file: &'static str,
    /// The resource that was written: a Job, a JobSet, a runtime of Trainer.
    pub(super) resource: Value,
    /// The spec of the Job in it.
    pub(super) job: Value,
    /// The spec of the pods of that Job.
    pub(super) pod: Value,
}

/// Each manifest, and where its Job stands in the resource of that kind.
const JOBS: [(&str, &str, &str); 3] = [
    ("indexed-job.yaml", "Job", "/spec"),
    ("jobset.yaml", "JobSet", "/spec/replicatedJobs/0/template/spec"),
    ("trainjob.yaml", "TrainingRuntime", "/spec/template/spec/replicatedJobs/0/template/spec"),
];

impl Pod {
    pub(super) fn all() -> [Self; 3] {
        JOBS.map(|(file, kind, path)| {
            let resource = resource(file, kind);
            let job = at(&resource, path).clone();
            let pod = at(&job, "/template/spec").clone();
            Self { file, resource, job, pod }
        })
    }

    pub(super) fn of(kind: &str) -> Self {
        let found = Self::all().into_iter().find(|pod| pod.resource["kind"] == kind);
        found.unwrap_or_else(|| panic!("no manifest has a {kind}"))
    }

    pub(super) fn container(&self) -> &Value {
        at(&self.pod, "/containers/0")
    }

    /// The variables that the manifest sets.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let variables = at(self.container(), "/env").as_array().expect("a list of variables");
        variables.iter().map(|variable| (text(variable, "/name"), text(variable, "/value"))).collect()
    }

    pub(super) fn variable(&self, name: &str) -> String {
        let found = self.environment().into_iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("{} does not set {name}", self.file)).1
    }
}

/// The resource of that kind in a manifest.
pub(super) fn resource(file: &str, kind: &str) -> Value {
    let text = fs::read_to_string(checkout().join("deploy/kubernetes").join(file)).expect("it is there");
    let found = documents(&text).into_iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("{file} has no {kind}"))
}

/// What stands at the path, which must be there.
pub(super) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or_else(|| panic!("nothing stands at {path} of {value}"))
}

/// The text at the path.
pub(super) fn text(value: &Value, path: &str) -> String {
    at(value, path).as_str().unwrap_or_else(|| panic!("no text stands at {path} of {value}")).to_owned()
}

fn documents(text: &str) -> Vec<Value> {
    let mut parser = Parser::new_from_str(text);
    let mut found = Vec::new();
    loop {
        match next(&mut parser) {
            Event::StreamEnd => return found,
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => found.push(node(&mut parser, event)),
        }
    }
}

fn next<'a>(parser: &mut Parser<'a, StrInput<'a>>) -> Event<'a> {
    parser.next_event().map_or(Event::StreamEnd, |event| event.expect("it is YAML").0)
}

/// The value that begins with this event.
fn node<'a>(parser: &mut Parser<'a, StrInput<'a>>, event: Event<'a>) -> Value {
    match event {
        Event::Scalar(word, ScalarStyle::Plain, ..) => {
            serde_json::from_str(&word).unwrap_or_else(|_| Value::String(word.into_owned()))
        }
        Event::Scalar(word, ..) => Value::String(word.into_owned()),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next(parser) {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(node(parser, event)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut entries = Map::new();
            loop {
                let key = match next(parser) {
                    Event::MappingEnd => return Value::Object(entries),
                    Event::Scalar(key, ..) => key.into_owned(),
                    other => panic!("{other:?} is not a key"),
                };
                let event = next(parser);
                assert!(!entries.contains_key(&key), "`{key}` stands there twice");
                entries.insert(key, node(parser, event));
            }
        }
        other => panic!("{other:?} is not a value"),
    }
}
