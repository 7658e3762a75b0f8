//! Real clients, real sockets, and what goes wrong between them.
//!
//! The service is `examples/payments` as it ships, over its card provider with a ledger of its own,
//! which is where effects are counted: in a file that neither the layer nor the store writes. A
//! proxy of ours loses, delays, doubles and reorders (`proxy`, `broken_network`); `curl` follows the
//! README (`readme`); many connections with duplicates among them make a load (`load`); `protocols`
//! has keep-alive, pipelining, HTTP/2 and trailers. `retry_tests` runs `oncekey::testing::RetryTests`
//! against all of it, `wrong_servers` against servers that are wrong on purpose.

#![cfg(not(any(oncekey_loom, oncekey_shuttle, oncekey_sanitizers)))]

#[path = "../../examples/payments/api.rs"]
mod api;
#[path = "../../examples/card_provider/ledger.rs"]
mod ledger;
#[path = "../../examples/card_provider/messages.rs"]
mod messages;
#[path = "../../examples/payments/owner.rs"]
mod owner;
#[path = "../../examples/payments/payment.rs"]
mod payment;
#[path = "../../examples/payments/problem.rs"]
mod problem;
#[path = "../../examples/payments/provider_client.rs"]
mod provider_client;
#[path = "../../examples/card_provider/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

mod broken_network;
mod load;
mod payments;
mod protocols;
mod proxy;
mod readme;
mod retry_tests;
mod wrong_servers;
