// Tasks shared out to threads. They share no state, so results do not depend on their number.
#pragma once
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace sordino {

// Calls f(thread, task) for every task, on the calling thread and threads - 1 others. All of these
// end before this returns, so nothing is left that a fork of the process could break.
// Returns whether no task threw.
template <class F>
bool run_tasks(int threads, long tasks, F f) {
  std::atomic<long> next{0};
  std::atomic<bool> sound{true};
  const auto work = [&](int thread) {
    try {
      for (;;) {
        const long task = next.fetch_add(1);
        if (task >= tasks) return;
        f(thread, task);
      }
    } catch (...) {
      sound = false;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int thread = 1; thread < threads && thread < tasks; thread++) {
      others.emplace_back(work, thread);
    }
  } catch (const std::system_error&) {
    // No more threads can be had: those that there are do all the tasks.
  }
  work(0);
  for (std::thread& other : others) other.join();
  return sound;
}

}  // namespace sordino
