//! What Hugging Face's `KubeflowCallback` reports of a training, and the heartbeat that it stands for.
//!
//! The callback sends one JSON document at the begin of a training, after a step if the last report is 5 s old, and at
//! the end. Its metrics are texts.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::spec::MAX_DURATION;

/// No report is longer, in bytes.
pub const MAX_REPORT: usize = 64 << 10;

/// Why a document is not a report.
#[derive(Debug, thiserror::Error)]
pub enum TrainerStatusError {
    #[error("it is longer than {MAX_REPORT} bytes")]
    TooLong,
    #[error("it is not a status of a trainer in JSON")]
    Json(#[from] serde_json::Error),
}

/// How far a training has come.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TrainerStatus {
    /// The last step that was reported; 0 before the first one.
    pub step: u64,
    pub total_steps: Option<u64>,
    /// The time until the end, as the trainer estimates it.
    pub remaining: Option<Duration>,
    /// The last one that was logged, if it is a finite number.
    pub loss: Option<f64>,
    /// The last report was that of the end.
    pub has_ended: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    trainer_status: ReportedStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReportedStatus {
    progress_percentage: Option<f64>,
    estimated_remaining_seconds: Option<f64>,
    metrics: Option<Vec<Metric>>,
}

#[derive(Deserialize)]
struct Metric {
    name: String,
    value: Value,
}

impl TrainerStatus {
    /// The status after this report; `before` is the one after the report before.
    ///
    /// # Errors
    /// The document is not a report.
    pub fn parse(document: &[u8], before: Option<Self>) -> Result<Self, TrainerStatusError> {
        if document.len() > MAX_REPORT {
            return Err(TrainerStatusError::TooLong);
        }
        let status = serde_json::from_slice::<Report>(document)?.trainer_status;
        let metrics = status.metrics.unwrap_or_default();
        let percentage = status.progress_percentage;
        let step = number::<u64>(&metrics, "current_step");
        let begins = step.is_none() && percentage.is_some_and(|percentage| percentage <= 0.0);
        let before = before.filter(|_| !begins).unwrap_or_default();
        let remaining = status.estimated_remaining_seconds.map(Duration::try_from_secs_f64);
        Ok(Self {
            // The reports of begin and end have none.
            step: step.unwrap_or(before.step),
            total_steps: number(&metrics, "total_steps").or(before.total_steps),
            remaining: remaining.and_then(Result::ok).filter(|time| *time <= MAX_DURATION),
            loss: number(&metrics, "loss").filter(|loss: &f64| loss.is_finite()),
            has_ended: percentage.is_some_and(|percentage| percentage >= 100.0),
        })
    }

    /// The line that the program would write to its FIFO. After the training it saves or evaluates, without a report.
    #[must_use]
    pub fn heartbeat(&self) -> String {
        let section = if self.has_ended { " section=after-training" } else { "" };
        format!("{}{section}\n", self.step)
    }
}

fn number<T: std::str::FromStr>(metrics: &[Metric], name: &str) -> Option<T> {
    let value = &metrics.iter().find(|metric| metric.name == name)?.value;
    value.as_str().map_or_else(|| value.to_string().parse(), |text| text.trim().parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hang::heartbeat::Heartbeat;

    fn report(percentage: &str, remaining: &str, metrics: &[(&str, &str)]) -> Vec<u8> {
        let metric = |(name, value): &(&str, &str)| format!(r#"{{"name": "{name}", "value": "{value}"}}"#);
        let metrics: Vec<String> = metrics.iter().map(metric).collect();
        format!(
            r#"{{"trainerStatus": {{"lastUpdatedTime": "2026-11-28T00:00:00+00:00", "progressPercentage": {percentage},
                "estimatedRemainingSeconds": {remaining}, "metrics": [{}]}}, "later": null}}"#,
            metrics.join(",")
        )
        .into_bytes()
    }

    fn heartbeat_of(status: TrainerStatus) -> Heartbeat {
        Heartbeat::parse(status.heartbeat().trim_end().as_bytes()).unwrap()
    }

    #[test]
    fn reports_of_a_training_are_heartbeats_with_its_steps() {
        let begin = br#"{"trainerStatus": {"progressPercentage": 0, "metrics": [{"name": "total_steps", "value": "1000"}]}}"#;
        let began = TrainerStatus::parse(begin, None).unwrap();
        assert_eq!(began, TrainerStatus { total_steps: Some(1000), ..TrainerStatus::default() });
        assert_eq!(heartbeat_of(began), Heartbeat { step: 0, section: None, limit: None });
        let metrics = [
            ("loss", "2.14"),
            ("learning_rate", "5e-05"),
            ("current_step", "120"),
            ("total_steps", "1000"),
            ("current_epoch", "0.12"),
        ];
        let trains = TrainerStatus::parse(&report("12", "180", &metrics), Some(began)).unwrap();
        let expected = TrainerStatus {
            step: 120,
            total_steps: Some(1000),
            remaining: Some(Duration::from_secs(180)),
            loss: Some(2.14),
            has_ended: false,
        };
        assert_eq!(trains, expected);
        assert_eq!(heartbeat_of(trains).step, 120);
        let ended = TrainerStatus::parse(&report("100", "0", &[("loss", "1.5")]), Some(trains)).unwrap();
        let expected =
            TrainerStatus { remaining: Some(Duration::ZERO), loss: Some(1.5), has_ended: true, ..expected };
        assert_eq!(ended, expected);
        let section = Some("after-training".to_owned());
        assert_eq!(heartbeat_of(ended), Heartbeat { step: 120, section, limit: None });
        assert_eq!(TrainerStatus::parse(begin, Some(ended)).unwrap(), began, "a second training");
    }

    #[test]
    fn values_that_mean_nothing_are_absent() {
        let step = ("current_step", "7");
        for (metrics, remaining) in [
            (vec![step, ("loss", "nan"), ("total_steps", "-1")], "1e300"),
            (vec![step, ("loss", "inf"), ("total_steps", "1e9")], "-1"),
            (vec![step, ("loss", "text"), ("total_steps", "99999999999999999999999")], "null"),
        ] {
            let status = TrainerStatus::parse(&report("0", remaining, &metrics), None).unwrap();
            assert_eq!(status, TrainerStatus { step: 7, ..TrainerStatus::default() }, "{metrics:?}");
        }
        let huge = report("1e9", "5", &[("current_step", "18446744073709551616")]);
        assert_eq!(TrainerStatus::parse(&huge, None).unwrap().step, 0);
        let numbers = br#"{"trainerStatus": {"metrics": [{"name": "current_step", "value": 3}, {"name": "loss", "value": [1]}]}}"#;
        let status = TrainerStatus::parse(numbers, None).unwrap();
        assert_eq!((status.step, status.loss), (3, None));
    }

    #[test]
    fn garbage_and_floods_are_errors_or_bounded() {
        for text in [
            "",
            "{}",
            "[1]",
            "\u{0}",
            r#"{"trainerStatus": 1}"#,
            r#"{"trainerStatus": {"metrics": [1]}}"#,
            r#"{"trainerStatus": {"progressPercentage": NaN}}"#,
            r#"{"trainerStatus": {"progressPercentage": 1e999}}"#,
        ] {
            let error = TrainerStatus::parse(text.as_bytes(), None).unwrap_err();
            assert!(matches!(error, TrainerStatusError::Json(_)), "{text}");
        }
        let deep = format!(r#"{{"trainerStatus": {}"#, "[".repeat(10_000));
        assert!(TrainerStatus::parse(deep.as_bytes(), None).is_err());
        let mut metrics = vec![("m", "1"); 1_000];
        metrics.push(("current_step", "5"));
        assert_eq!(TrainerStatus::parse(&report("1", "1", &metrics), None).unwrap().step, 5);
        let flood = report("1", "1", &vec![("metric", "1"); 10_000]);
        assert!(matches!(TrainerStatus::parse(&flood, None), Err(TrainerStatusError::TooLong)));
    }
}
