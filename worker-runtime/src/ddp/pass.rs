//! The state of a backward pass: which gradients are ready, and which bucket is next. Pure.

use super::bucket::BucketPlan;

/// The content of a gradient's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// No value of this step.
    Nothing,
    /// Values of this pass.
    OfThisPass,
    /// Values of earlier passes, to be added to.
    OfEarlierPasses,
}

/// One pass, or several with accumulated gradients.
#[derive(Debug)]
pub(crate) struct Pass {
    content: Vec<Content>,
    is_ready: Vec<bool>,
    /// Number of gradients that each bucket lacks.
    missing: Vec<usize>,
    /// The next bucket to start.
    next: usize,
    /// Number of gradients of each bucket.
    complete_buckets: Vec<usize>,
}

impl Pass {
    pub(crate) fn new(plan: &BucketPlan) -> Self {
        let whole: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.members.len()).collect();
        let parameters = plan.places.len();
        Self {
            content: vec![Content::Nothing; parameters],
            is_ready: vec![false; parameters],
            missing: whole.clone(),
            next: 0,
            complete_buckets: whole,
        }
    }

    /// Whether the step has no values yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.content.iter().all(|content| *content == Content::Nothing)
    }

    pub(crate) fn is_ready(&self, parameter: usize) -> bool {
        self.is_ready[parameter]
    }

    /// Whether the gradient was ready in this pass or in an accumulated one.
    pub(crate) fn is_used(&self, parameter: usize) -> bool {
        self.is_ready[parameter] || self.content[parameter] == Content::OfEarlierPasses
    }

    /// Whether earlier passes have left values.
    pub(crate) fn is_kept(&self, parameter: usize) -> bool {
        self.content[parameter] == Content::OfEarlierPasses
    }

    /// Notes a write to the gradient; returns whether its memory has no value yet.
    #[must_use]
    pub(crate) fn mark_written(&mut self, parameter: usize) -> bool {
        let was_empty = self.content[parameter] == Content::Nothing;
        if was_empty {
            self.content[parameter] = Content::OfThisPass;
        }
        was_empty
    }

    /// Discards values of this pass that were never marked ready.
    pub(crate) fn mark_unwritten(&mut self, parameter: usize) {
        if self.content[parameter] == Content::OfThisPass {
            self.content[parameter] = Content::Nothing;
        }
    }

    /// Marks a gradient ready, of which its bucket then lacks one less.
    pub(crate) fn set_ready(&mut self, parameter: usize, bucket: usize) {
        self.is_ready[parameter] = true;
        self.missing[bucket] -= 1;
    }

    /// The next bucket, if all its gradients are ready. The order of buckets is the same on all ranks,
    /// in whatever order gradients become ready.
    pub(crate) fn next_bucket(&mut self) -> Option<usize> {
        let next = self.next;
        let is_complete = *self.missing.get(next)? == 0;
        is_complete.then(|| {
            self.next += 1;
            next
        })
    }

    /// The parameters without a gradient in this pass, in model order.
    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> {
        self.is_ready.iter().enumerate().filter(|(_, is_ready)| !**is_ready).map(|(parameter, _)| parameter)
    }

    /// Ends an accumulated pass; unless a bucket is under way, which only the end of the step can end.
    pub(crate) fn end_accumulated_pass(&mut self) {
        if self.next > 0 {
            return;
        }
        for (content, is_ready) in self.content.iter_mut().zip(&self.is_ready) {
            // Values that were never marked ready belong to no pass.
            *content = match (*content, is_ready) {
                (Content::OfThisPass, false) => Content::Nothing,
                (Content::Nothing, _) => Content::Nothing,
                _ => Content::OfEarlierPasses,
            };
        }
        self.begin();
    }

    pub(crate) fn reset(&mut self) {
        self.content.fill(Content::Nothing);
        self.begin();
    }

    fn begin(&mut self) {
        self.is_ready.fill(false);
        self.missing.clone_from(&self.complete_buckets);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::bucket::Sizes;
    use crate::ddp::parameter::Parameter;
    use proptest::prelude::*;

    /// A plan with one bucket per parameter.
    fn plan(parameters: usize) -> BucketPlan {
        let parameter = |at: usize| Parameter::new::<f32>(at.to_string(), &[1]);
        let parameters: Vec<_> = (0..parameters).map(parameter).collect();
        BucketPlan::new(&parameters, Sizes { first: 1, rest: 1 })
    }

    #[test]
    fn bucket_waits_for_earlier_buckets() {
        let mut pass = Pass::new(&plan(3));
        // Parameter 2 is in bucket 0, and so on.
        pass.set_ready(1, 1);
        assert_eq!(pass.next_bucket(), None);
        pass.set_ready(2, 0);
        assert_eq!([pass.next_bucket(), pass.next_bucket(), pass.next_bucket()], [Some(0), Some(1), None]);
        assert_eq!(pass.missing().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn kept_pass_accumulates_gradients() {
        let mut pass = Pass::new(&plan(2));
        assert!(pass.mark_written(0) && !pass.mark_written(0) && pass.mark_written(1));
        pass.set_ready(0, 1);
        pass.end_accumulated_pass();
        assert!(pass.is_kept(0) && pass.is_used(0) && !pass.is_ready(0) && !pass.mark_written(0));
        assert!(!pass.is_used(1) && pass.mark_written(1), "what was not ready was nothing");
        pass.reset();
        assert!(pass.is_fresh() && !pass.is_used(0));
    }

    proptest! {
        #[test]
        fn each_bucket_is_sent_once_in_order(order in Just((0..9).collect::<Vec<usize>>()).prop_shuffle()) {
            let plan = plan(9);
            let mut pass = Pass::new(&plan);
            let mut gone = Vec::new();
            for parameter in order {
                pass.set_ready(parameter, plan.places[parameter].bucket);
                gone.extend(std::iter::from_fn(|| pass.next_bucket()));
            }
            prop_assert_eq!(gone, (0..9).collect::<Vec<_>>());
        }
    }
}
