//! How far a backward pass has come: which gradients are ready, and which bucket goes next. Pure.

use super::bucket::Plan;

/// What lies in a gradient's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Nothing of this step.
    Nothing,
    /// What this pass has written so far.
    OfThisPass,
    /// What passes before this one have left to be added to.
    OfEarlierPasses,
}

/// A pass, or several of which gradients add up.
#[derive(Debug)]
pub(crate) struct Pass {
    content: Vec<Content>,
    is_ready: Vec<bool>,
    /// Gradients that each bucket waits for.
    missing: Vec<usize>,
    /// The next bucket that goes; those before it have gone.
    next: usize,
    /// How many gradients each bucket has.
    whole: Vec<usize>,
}

impl Pass {
    pub(crate) fn new(plan: &Plan) -> Self {
        let whole: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.members.len()).collect();
        let parameters = plan.places.len();
        Self {
            content: vec![Content::Nothing; parameters],
            is_ready: vec![false; parameters],
            missing: whole.clone(),
            next: 0,
            whole,
        }
    }

    /// Whether nothing of a step is there yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.content.iter().all(|content| *content == Content::Nothing)
    }

    pub(crate) fn is_ready(&self, parameter: usize) -> bool {
        self.is_ready[parameter]
    }

    /// Whether the gradient was ready in this pass, or in one whose gradients it adds to.
    pub(crate) fn is_used(&self, parameter: usize) -> bool {
        self.is_ready[parameter] || self.content[parameter] == Content::OfEarlierPasses
    }

    /// Whether passes before this one have left something.
    pub(crate) fn is_kept(&self, parameter: usize) -> bool {
        self.content[parameter] == Content::OfEarlierPasses
    }

    /// The gradient is about to be written; whether there is nothing in its place yet.
    #[must_use]
    pub(crate) fn touch(&mut self, parameter: usize) -> bool {
        let was_empty = self.content[parameter] == Content::Nothing;
        if was_empty {
            self.content[parameter] = Content::OfThisPass;
        }
        was_empty
    }

    /// What this pass has written there, and never said to be ready, does not count.
    pub(crate) fn forget(&mut self, parameter: usize) {
        if self.content[parameter] == Content::OfThisPass {
            self.content[parameter] = Content::Nothing;
        }
    }

    /// The gradient is written, and its bucket waits for one less.
    pub(crate) fn set_ready(&mut self, parameter: usize, bucket: usize) {
        self.is_ready[parameter] = true;
        self.missing[bucket] -= 1;
    }

    /// The next bucket, if all its gradients are ready. Buckets go in their order, which is the same on all ranks whatever the order
    /// in which gradients become ready on each.
    pub(crate) fn next_bucket(&mut self) -> Option<usize> {
        let next = self.next;
        let is_complete = *self.missing.get(next)? == 0;
        is_complete.then(|| {
            self.next += 1;
            next
        })
    }

    /// The parameters that have no gradient in this pass, in the order of the model.
    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> {
        self.is_ready.iter().enumerate().filter(|(_, is_ready)| !**is_ready).map(|(parameter, _)| parameter)
    }

    /// The pass is over, and the next one adds to what it has written; unless some of it is on its way, so that only the end of
    /// the step can be its end.
    pub(crate) fn keep(&mut self) {
        if self.next > 0 {
            return;
        }
        for (content, is_ready) in self.content.iter_mut().zip(&self.is_ready) {
            // What was only looked at, or written and not said to be ready, is of no pass.
            *content = match (*content, is_ready) {
                (Content::OfThisPass, false) => Content::Nothing,
                (Content::Nothing, _) => Content::Nothing,
                _ => Content::OfEarlierPasses,
            };
        }
        self.begin();
    }

    /// The step is over.
    pub(crate) fn reset(&mut self) {
        self.content.fill(Content::Nothing);
        self.begin();
    }

    fn begin(&mut self) {
        self.is_ready.fill(false);
        self.missing.clone_from(&self.whole);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::bucket::Sizes;
    use crate::ddp::parameter::Parameter;
    use proptest::prelude::*;

    /// A bucket for each of so many parameters.
    fn plan(parameters: usize) -> Plan {
        let parameter = |at: usize| Parameter::new::<f32>(at.to_string(), &[1]);
        let parameters: Vec<_> = (0..parameters).map(parameter).collect();
        Plan::new(&parameters, Sizes { first: 1, others: 1 })
    }

    #[test]
    fn a_bucket_waits_for_those_before_it() {
        let mut pass = Pass::new(&plan(3));
        // Parameter 2 is in bucket 0, and so on.
        pass.set_ready(1, 1);
        assert_eq!(pass.next_bucket(), None);
        pass.set_ready(2, 0);
        assert_eq!([pass.next_bucket(), pass.next_bucket(), pass.next_bucket()], [Some(0), Some(1), None]);
        assert_eq!(pass.missing().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_pass_that_is_kept_is_added_to_and_used() {
        let mut pass = Pass::new(&plan(2));
        assert!(pass.touch(0) && !pass.touch(0) && pass.touch(1));
        pass.set_ready(0, 1);
        pass.keep();
        assert!(pass.is_kept(0) && pass.is_used(0) && !pass.is_ready(0) && !pass.touch(0));
        assert!(!pass.is_used(1) && pass.touch(1), "what was not ready was nothing");
        pass.reset();
        assert!(pass.is_fresh() && !pass.is_used(0));
    }

    proptest! {
        #[test]
        fn every_bucket_goes_once_and_in_its_order(order in Just((0..9).collect::<Vec<usize>>()).prop_shuffle()) {
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
