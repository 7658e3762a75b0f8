//! Every future of the public interface can be spawned on a runtime that moves tasks.

use oncekey::inbox::{Event, Inbox};
use oncekey::reconcile::{Interrupted, Verdict};
use oncekey::{
    ClaimOptions, Fingerprint, Forget, InProgress, Key, Operation, Response, RunOptions, Saved,
    Store, Ticket,
};

fn send<T: Send>(_: T) {}

#[allow(dead_code, unreachable_code, clippy::diverging_sub_expression)]
fn every_future_is_send(store: &Store, key: &Key, ticket: &Ticket) {
    let fingerprint = Fingerprint::none();
    send(store.claim_async(key, fingerprint));
    send(store.claim_with_async(key, fingerprint, ClaimOptions::new()));
    send(store.claim_many_async([(key, fingerprint)], ClaimOptions::new()));
    send(store.get_async(key));
    send(store.forget_async(key, Forget::Force));
    send(store.resume_async(ticket));
    send(store.flush_async());
    send(store.run_async(
        key,
        fingerprint,
        RunOptions::new(),
        async |_: &mut Operation| Ok::<_, std::io::Error>("done"),
    ));
    send(store.reconcile_async(async |_: &Interrupted| Verdict::Keep));
    let progress = |progress: InProgress| send(progress.wait_async());
    let complete = |operation: Operation| send(operation.complete_async("done"));
    let release = |operation: Operation| send(operation.release_async());
    let without = |operation: Operation| send(operation.complete_without_response_async());
    let commit = |operation: Operation| send(operation.complete_with("done").commit_async());
    let checkpoint = |operation: &mut Operation| send(operation.checkpoint_async("note"));
    let _ = (progress, complete, release, without, commit, checkpoint);
}

#[allow(dead_code, unreachable_code, clippy::diverging_sub_expression)]
fn every_future_of_an_inbox_is_send(inbox: &Inbox, event: &mut Event) {
    send(inbox.process_async("event", async |_: &mut Event| Ok(())));
    send(inbox.process_batch_async(["event"], async |_: usize, _: &mut Event| Ok(())));
    send(event.checkpoint_async("note"));
}

#[test]
fn handles_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Store>();
    shared::<Inbox>();
    shared::<Interrupted>();
    shared::<Key>();
    shared::<Saved>();
    shared::<Response>();
    shared::<Ticket>();
    fn owned<T: Send + 'static>() {}
    owned::<Operation>();
    owned::<InProgress>();
}
